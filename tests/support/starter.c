/* Starts a program many times and loads its libraries once. Loading libtorch registers some thousand operators, which takes
   most of a short run of kdgat.

   Loaded before the program's libraries (LD_PRELOAD), it takes the place of the program's `main`: by then all libraries are loaded and
   no thread runs. It listens at the Unix socket that STARTER_SOCKET names. Each connection asks for one run; a fork of this process
   calls the real `main` with the arguments, environment, folder and standard streams that were sent, so that the run has a process of its
   own, which is as it would be at the beginning of `main`. Its process ID is written to the connection, and its wait status when it has
   ended. It is killed if the connection is closed before. The starter ends when its standard input does: whoever started it holds the
   other end.

   A request has strings that end with 0: folder, number of arguments, arguments (with the program's name), and the environment. Its end
   is the end of what is sent. The streams are sent beside the first bytes. proxy.c sends it. */
#define _GNU_SOURCE
#include "children.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RUNS = 120, FIRST_RUN = 2, STREAMS = 3 };

static main_function program;
/* Standard input and the listening socket, and for each run a descriptor of its process and its connection. */
static struct pollfd watched[FIRST_RUN + 2 * MAX_RUNS];
static pid_t processes[MAX_RUNS];
static size_t count;

static void fail(const char *what) {
    fprintf(stderr, "starter: %s: %s\n", what, strerror(errno));
    _exit(1);
}

/* Everything that a connection sends, and its length. */
static char *received(int connection, size_t *length, int streams[STREAMS]) {
    size_t room = 1 << 16;
    char *text = malloc(room);
    int has_streams = 0;
    for (*length = 0; text != NULL;) {
        _Alignas(struct cmsghdr) char beside[CMSG_SPACE(STREAMS * sizeof *streams)];
        struct iovec part = {.iov_base = text + *length, .iov_len = room - *length};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof beside};
        ssize_t got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail("recvmsg");
        if (got == 0 && !has_streams) fail("request");
        if (got == 0) return text;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header != NULL && header->cmsg_type == SCM_RIGHTS) {
            memcpy(streams, CMSG_DATA(header), STREAMS * sizeof *streams);
            has_streams = 1;
        }
        *length += (size_t)got;
        if (*length == room) text = realloc(text, room *= 2);
    }
    fail("malloc");
    return NULL;
}

/* The connection of a run. */
static int connection_of(const struct pollfd *run) {
    return run[1].fd < 0 ? ~run[1].fd : run[1].fd;
}

/* In the new process: what `exec` would have done, and then `main`. */
static int run(char *text, size_t length, const int streams[STREAMS]) {
    const char *end = text + length, *folder = text;
    char *next = text + strlen(folder) + 1;
    int argc = atoi(next), strings = 0;
    for (const char *at = next; at < end; at += strlen(at) + 1) strings++;
    char **list = calloc((size_t)strings + 2, sizeof *list);
    if (list == NULL || argc < 1 || argc >= strings) fail("request");
    char **environment = list + argc + 1;
    next += strlen(next) + 1;
    for (int index = 0; next < end; index++, next += strlen(next) + 1) {
        if (index < argc) list[index] = next;
        else environment[index - argc] = next;
    }
    close(watched[1].fd);
    for (const struct pollfd *run = watched + FIRST_RUN; run < watched + FIRST_RUN + 2 * count; run += 2) {
        close(run[0].fd);
        close(connection_of(run));
    }
    if (chdir(folder) != 0) fail(folder);
    for (int stream = 0; stream < STREAMS; stream++) {
        if (dup2(streams[stream], stream) < 0) fail("dup2");
        close(streams[stream]);
    }
    environ = environment;
    return with_children(program, argc, list, environment);
}

/* Starts the run that a connection asks for. */
static int begin(int connection) {
    size_t length;
    int streams[STREAMS];
    char *text = received(connection, &length, streams);
    pid_t process = fork();
    if (process < 0) fail("fork");
    if (process == 0) {
        close(connection);
        return run(text, length, streams);
    }
    free(text);
    for (int stream = 0; stream < STREAMS; stream++) close(streams[stream]);
    (void)!send(connection, &process, sizeof process, MSG_NOSIGNAL);
    int descriptor = (int)syscall(SYS_pidfd_open, process, 0);
    if (descriptor < 0) fail("pidfd_open");
    struct pollfd *run = watched + FIRST_RUN + 2 * count;
    run[0] = (struct pollfd){.fd = descriptor, .events = POLLIN};
    /* Without events, only its end is reported. */
    run[1] = (struct pollfd){.fd = connection};
    processes[count++] = process;
    return -1;
}

/* Tells the other end of the connection that the process has ended. */
static void end(size_t index) {
    struct pollfd *run = watched + FIRST_RUN + 2 * index, *last = watched + FIRST_RUN + 2 * --count;
    int status;
    if (waitpid(processes[index], &status, 0) != processes[index]) fail("waitpid");
    (void)!send(connection_of(run), &status, sizeof status, MSG_NOSIGNAL);
    close(run[0].fd);
    close(connection_of(run));
    run[0] = last[0];
    run[1] = last[1];
    processes[index] = processes[count];
}

static int starter(int argc, char **argv, char **environment) {
    (void)argc, (void)argv, (void)environment;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("STARTER_SOCKET");
    if (path == NULL || strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        fail("STARTER_SOCKET");
    }
    strcpy(address.sun_path, path);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, MAX_RUNS) != 0) fail(path);
    watched[0] = (struct pollfd){.fd = 0, .events = POLLIN};
    watched[1] = (struct pollfd){.fd = listener};
    /* Readable now: whoever started this process connects from here on. */
    (void)!write(1, "\n", 1);
    for (;;) {
        watched[1].events = count < MAX_RUNS ? POLLIN : 0;
        if (poll(watched, FIRST_RUN + 2 * count, -1) < 0) {
            if (errno == EINTR) continue;
            fail("poll");
        }
        if (watched[0].revents != 0) _exit(0);
        for (size_t index = count; index-- > 0;) {
            struct pollfd *run = watched + FIRST_RUN + 2 * index;
            if (run[0].revents != 0) {
                end(index);
            } else if (run[1].revents != 0) {
                kill(processes[index], SIGKILL);
                /* `poll` leaves it out from now on. */
                run[1].fd = ~run[1].fd;
            }
        }
        if (watched[1].revents == 0) continue;
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) fail("accept");
        int result = begin(connection);
        if (result >= 0) return result;
    }
}

/* Without a socket, only the children of this process are started in another way (children.c). */
static int alone(int argc, char **argv, char **environment) {
    (void)environment;
    unsetenv("LD_PRELOAD");
    return with_children(program, argc, argv, environ);
}

int __libc_start_main(main_function real_main, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
                      void *stack_end) {
    int (*start)(main_function, int, char **, void (*)(void), void (*)(void), void (*)(void), void *) =
        (int (*)(main_function, int, char **, void (*)(void), void (*)(void), void (*)(void), void *))dlsym(RTLD_NEXT, "__libc_start_main");
    if (start == NULL) {
        errno = ENOSYS;
        fail("__libc_start_main");
    }
    program = real_main;
    return start(getenv("STARTER_SOCKET") == NULL ? alone : starter, argc, argv, init, fini, rtld_fini, stack_end);
}
