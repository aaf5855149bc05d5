#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Facility `daemon`, in the bits above the level. */
#define DAEMON (3 << 3)
#define MESSAGE_BYTES (EVENT_MOST_BYTES + 64u)

/* Sets a local address; returns its length, or 0 if the path is too long. A leading @ is a name without a file. */
static socklen_t address_of(struct sockaddr_un *address, const char *path)
{
    const size_t length = strlen(path);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    if (length == 0 || length >= sizeof address->sun_path) {
        errno = ENAMETOOLONG;
        return 0;
    }
    memcpy(address->sun_path, path, length);
    if (path[0] == '@') {
        address->sun_path[0] = '\0';
        return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    }
    return (socklen_t)sizeof *address;
}

/* A connected datagram socket that never waits, or -1. */
static int connected(const char *path)
{
    struct sockaddr_un address;
    const socklen_t length = address_of(&address, path);
    int file, problem;

    if (length == 0) {
        return -1;
    }
    file = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (file >= 0 && connect(file, (const struct sockaddr *)&address, length) != 0) {
        problem = errno;
        (void)close(file);
        errno = problem;
        file = -1;
    }
    return file;
}

int system_log_open(system_log *to, const char *path)
{
    memset(to, 0, sizeof *to);
    to->path = path;
    to->file = -1;
    if (path == NULL) {
        return 1;
    }
    to->file = connected(path);
    if (to->file < 0) {
        fprintf(stderr,
                "error: --syslog: cannot reach the system's log at %s (%s); start its daemon, or name its socket with --syslog=SOCKET\n",
                path, strerror(errno));
        return 0;
    }
    return 1;
}

/* Level of an event (RFC 5424, section 6.2.1): critical 2, error 3, warning 4, notice 5, informational 6. */
static int level(const event *about)
{
    switch (about->kind) {
    case EVENT_ALARM:
    case EVENT_ALARM_CHANGE:
        return about->severity == ALARM_HIGH ? 2 : about->severity == ALARM_MEDIUM ? 3 : 4;
    case EVENT_SILENCE:
        return 4;
    case EVENT_ALARM_END:
    case EVENT_SILENCE_END:
        return 5;
    case EVENT_HEARTBEAT:
        break;
    }
    return 6;
}

void system_log_send(system_log *to, const event *about)
{
    char message[MESSAGE_BYTES];
    int length;

    if (to->path == NULL) {
        return;
    }
    length = snprintf(message, sizeof message, "<%d>kdgat-car[%ld]: %s", DAEMON + level(about), (long)getpid(), about->json);
    if (length <= 0 || (size_t)length >= sizeof message) {
        to->lost++;
        return;
    }
    if (to->file >= 0 && send(to->file, message, (size_t)length, MSG_NOSIGNAL) >= 0) {
        return;
    }
    if (to->file >= 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        to->lost++;
        return;
    }
    if (to->file >= 0) {
        (void)close(to->file);
    }
    to->file = connected(to->path);
    if (to->file < 0 || send(to->file, message, (size_t)length, MSG_NOSIGNAL) < 0) {
        to->lost++;
    }
}

/* Sends a state to systemd, if it listens. */
static void tell(const char *state)
{
    const char *const path = getenv("NOTIFY_SOCKET");
    int file;
    if (path == NULL) {
        return;
    }
    file = connected(path);
    if (file < 0 || send(file, state, strlen(state), MSG_NOSIGNAL) < 0) {
        fprintf(stderr, "warning: systemd does not take %s at %s: %s\n", state, path, strerror(errno));
    }
    if (file >= 0) {
        (void)close(file);
    }
}

void service_ready(service *manager, double now)
{
    const char *const period = getenv("WATCHDOG_USEC"), *const process = getenv("WATCHDOG_PID");
    manager->period_seconds = 0.0;
    manager->last = now;
    if (getenv("NOTIFY_SOCKET") != NULL && period != NULL && (process == NULL || strtol(process, NULL, 10) == (long)getpid())) {
        manager->period_seconds = strtod(period, NULL) * 1e-6 / 2.0;
    }
    tell("READY=1");
}

void service_alive(service *manager, double now)
{
    if (manager->period_seconds > 0.0 && now - manager->last >= manager->period_seconds) {
        manager->last = now;
        tell("WATCHDOG=1");
    }
}

void service_stopping(void)
{
    tell("STOPPING=1");
}
