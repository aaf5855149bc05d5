#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "hook.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define VARIABLES 6
#define VARIABLE_BYTES 128u

extern char **environ;

static const char *const names[VARIABLES] = {"KDGAT_EVENT=", "KDGAT_TIME=",     "KDGAT_ALARM=",
                                             "KDGAT_SCORE=", "KDGAT_SEVERITY=", "KDGAT_IDS="};

/* Returns 1 for a variable that only an event may set. */
static int is_of_event(const char *variable)
{
    size_t at;
    for (at = 0; at < VARIABLES; at++) {
        if (strncmp(variable, names[at], strlen(names[at])) == 0) {
            return 1;
        }
    }
    return 0;
}

int hook_start(hook *calls, const char *command)
{
    size_t count = 0, at;

    memset(calls, 0, sizeof *calls);
    calls->command = command;
    if (command == NULL) {
        return 1;
    }
    while (environ[count] != NULL) {
        count++;
    }
    /* Lives as long as the program. */
    calls->environment = calloc(count + VARIABLES + 1u, sizeof *calls->environment);
    if (calls->environment == NULL) {
        fprintf(stderr, "error: --exec: no memory for %u variables\n", (unsigned)count);
        return 0;
    }
    for (at = 0; at < count; at++) {
        if (!is_of_event(environ[at])) {
            calls->environment[calls->inherited++] = environ[at];
        }
    }
    return 1;
}

static text variable(char *bytes, size_t which)
{
    text made = text_in(bytes, VARIABLE_BYTES);
    text_add(&made, names[which]);
    return made;
}

/* Sets the event's variables behind the inherited ones. */
static void set_variables(hook *calls, const event *about, char (*bytes)[VARIABLE_BYTES])
{
    char **next = calls->environment + calls->inherited;
    text value = variable(bytes[0], 0);
    uint32_t at;

    text_add(&value, event_name(about->kind));
    *next++ = bytes[0];
    if (about->has_time) {
        value = variable(bytes[1], 1);
        text_double(&value, about->time);
        *next++ = bytes[1];
    }
    if (about->kind == EVENT_ALARM || about->kind == EVENT_ALARM_CHANGE || about->kind == EVENT_ALARM_END) {
        value = variable(bytes[2], 2);
        text_count(&value, about->alarm);
        *next++ = bytes[2];
        value = variable(bytes[3], 3);
        text_double(&value, about->score);
        *next++ = bytes[3];
        value = variable(bytes[4], 4);
        text_add(&value, event_severity(about->severity));
        *next++ = bytes[4];
        value = variable(bytes[5], 5);
        for (at = 0; at < about->num_culprits; at++) {
            text_add(&value, at == 0u ? "" : " ");
            text_id(&value, about->culprit[at]);
        }
        *next++ = bytes[5];
    }
    *next = NULL;
}

/* Starts sh with the read end of a pipe as its input; returns 0 or an error of errno. */
static int spawn(hook *calls, int input)
{
    char *arguments[] = {(char[]){"sh"}, (char[]){"-c"}, NULL, NULL};
    char command[4096];
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    int problem;

    /* posix_spawn wants it writable. */
    if (strlen(calls->command) >= sizeof command) {
        return E2BIG;
    }
    memcpy(command, calls->command, strlen(calls->command) + 1u);
    arguments[2] = command;
    problem = posix_spawn_file_actions_init(&actions);
    if (problem != 0) {
        return problem;
    }
    problem = posix_spawnattr_init(&attributes);
    if (problem != 0) {
        (void)posix_spawn_file_actions_destroy(&actions);
        return problem;
    }
    (void)sigemptyset(&defaults);
    (void)sigaddset(&defaults, SIGPIPE);
    /* Standard output is for events alone. A group of its own: Ctrl-C stops the detector, not the command that reports the end. */
    if ((problem = posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO)) == 0 &&
        (problem = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO)) == 0 &&
        (problem = posix_spawnattr_setsigdefault(&attributes, &defaults)) == 0 &&
        (problem = posix_spawnattr_setpgroup(&attributes, 0)) == 0 &&
        (problem = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF)) == 0) {
        problem = posix_spawn(&calls->child, "/bin/sh", &actions, &attributes, arguments, calls->environment);
    }
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return problem;
}

static void count_end(hook *calls, int has_failed, const char *why, int number)
{
    calls->ended++;
    if (has_failed && ++calls->failed == 1u) {
        fprintf(stderr, "warning: --exec '%s': %s %d; later failures are counted\n", calls->command, why, number);
    }
}

/* Starts the call for an event. */
static void begin(hook *calls, const event *about)
{
    char bytes[VARIABLES][VARIABLE_BYTES], line[EVENT_MOST_BYTES + 1u];
    const size_t length = strlen(about->json);
    int ends[2], problem;

    set_variables(calls, about, bytes);
    if (pipe(ends) != 0) {
        count_end(calls, 1, "no pipe: error", errno);
        return;
    }
    (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    (void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    problem = spawn(calls, ends[0]);
    (void)close(ends[0]);
    if (problem != 0) {
        calls->child = 0;
        count_end(calls, 1, "cannot run sh: error", problem);
    } else {
        memcpy(line, about->json, length);
        line[length] = '\n';
        /* Shorter than an empty pipe's buffer, so this never waits. A command may end without reading it. */
        if (write(ends[1], line, length + 1u) < 0 && errno != EPIPE) {
            fprintf(stderr, "warning: --exec: no input for the command: error %d\n", errno);
        }
    }
    (void)close(ends[1]);
}

void hook_call(hook *calls, const event *about)
{
    if (calls->command == NULL) {
        return;
    }
    if (calls->waiting == HOOK_WAITING) {
        calls->dropped++;
    } else {
        calls->queue[(calls->first + calls->waiting) % HOOK_WAITING] = *about;
        calls->waiting++;
    }
    hook_pump(calls);
}

void hook_pump(hook *calls)
{
    int status;
    if (calls->child != 0) {
        const pid_t found = waitpid(calls->child, &status, WNOHANG);
        if (found == 0 || (found < 0 && errno == EINTR)) {
            return;
        }
        calls->child = 0;
        if (found < 0) {
            count_end(calls, 1, "cannot wait for it: error", errno);
        } else if (WIFSIGNALED(status)) {
            count_end(calls, 1, "it was ended by signal", WTERMSIG(status));
        } else {
            count_end(calls, WEXITSTATUS(status) != 0, "it failed with exit status", WEXITSTATUS(status));
        }
    }
    if (calls->waiting > 0u) {
        const event *const next = &calls->queue[calls->first];
        calls->first = (calls->first + 1u) % HOOK_WAITING;
        calls->waiting--;
        begin(calls, next);
    }
}

static double seconds_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void hook_finish(hook *calls, double seconds)
{
    const struct timespec pause = {0, 5000000};
    const double end = seconds_now() + seconds;
    uint64_t unfinished;

    if (calls->command == NULL) {
        return;
    }
    for (hook_pump(calls); (calls->child != 0 || calls->waiting > 0u) && seconds_now() < end; hook_pump(calls)) {
        (void)nanosleep(&pause, NULL);
    }
    fprintf(stderr, "--exec: %" PRIu64 " calls", calls->ended);
    if (calls->failed > 0u) {
        fprintf(stderr, ", %" PRIu64 " of them failed", calls->failed);
    }
    fputc('\n', stderr);
    if (calls->dropped > 0u) {
        fprintf(stderr, "--exec: %" PRIu64 " more calls dropped, because earlier ones were still running; use a faster command\n",
                calls->dropped);
    }
    unfinished = calls->waiting + (calls->child != 0 ? 1u : 0u);
    if (unfinished > 0u) {
        fprintf(stderr, "--exec: %" PRIu64 " calls did not end within %.0f s of the end of the stream\n", unfinished, seconds);
    }
}
