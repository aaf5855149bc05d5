/* Starts a program many times and loads its libraries once. Loading libtorch registers some thousand operators, which takes
   most of a short run of kdgat.

   Loaded before the program's libraries (LD_PRELOAD), it takes the place of the program's `main`: by then all libraries are loaded and
   no thread runs. It listens at the Unix socket that STARTER_SOCKET names. Each connection asks for one run; a fork of this process
   calls the real `main` with the arguments, environment and folder that were sent, so that the run has a process of its own, which is
   as it would be at the beginning of `main`. When it ends, its wait status is written to the connection. The starter ends when its
   standard input does: whoever started it holds the other end.

   A request has strings that end with 0: folder, file for standard output, file for standard error, number of arguments, arguments
   (with the program's name), and the environment. Its end is the end of what is sent. tests/support/starter.rs sends it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RUNS = 256, FIRST_RUN = 2 };

typedef int (*main_function)(int, char **, char **);

static main_function program;
/* Standard input, the listening socket, and a descriptor for each process that runs. */
static struct pollfd watched[FIRST_RUN + MAX_RUNS];
static struct { pid_t process; int connection; } runs[FIRST_RUN + MAX_RUNS];
static nfds_t count = FIRST_RUN;

static void fail(const char *what) {
    fprintf(stderr, "starter: %s: %s\n", what, strerror(errno));
    _exit(1);
}

/* Everything that a connection sends, and its length. */
static char *received(int connection, size_t *length) {
    size_t room = 1 << 16;
    char *text = malloc(room);
    for (*length = 0; text != NULL;) {
        ssize_t got = read(connection, text + *length, room - *length);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail("read");
        if (got == 0) return text;
        *length += (size_t)got;
        if (*length == room) text = realloc(text, room *= 2);
    }
    fail("malloc");
    return NULL;
}

static void redirect(int descriptor, const char *path, int flags) {
    int file = open(path, flags, 0600);
    if (file < 0 || dup2(file, descriptor) < 0) fail(path);
    if (file != descriptor) close(file);
}

/* In the new process: what `exec` would have done, and then `main`. */
static int run(char *text, size_t length) {
    const char *end = text + length, *folder = text;
    const char *output = folder + strlen(folder) + 1;
    const char *errors = output + strlen(output) + 1;
    char *next = (char *)errors + strlen(errors) + 1;
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
    for (nfds_t index = 1; index < count; index++) close(watched[index].fd);
    for (nfds_t index = FIRST_RUN; index < count; index++) close(runs[index].connection);
    if (chdir(folder) != 0) fail(folder);
    redirect(0, "/dev/null", O_RDONLY);
    redirect(1, output, O_WRONLY | O_CREAT | O_TRUNC);
    redirect(2, errors, O_WRONLY | O_CREAT | O_TRUNC);
    environ = environment;
    return program(argc, list, environment);
}

/* Tells the other end of the connection that the process has ended. */
static void report(nfds_t index) {
    int status;
    if (waitpid(runs[index].process, &status, 0) != runs[index].process) fail("waitpid");
    /* Whoever asked may have ended, too. */
    (void)!send(runs[index].connection, &status, sizeof status, MSG_NOSIGNAL);
    close(runs[index].connection);
    close(watched[index].fd);
    count--;
    watched[index] = watched[count];
    runs[index] = runs[count];
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
        watched[1].events = count < FIRST_RUN + MAX_RUNS ? POLLIN : 0;
        if (poll(watched, count, -1) < 0) {
            if (errno == EINTR) continue;
            fail("poll");
        }
        if (watched[0].revents != 0) _exit(0);
        for (nfds_t index = count; index-- > FIRST_RUN;)
            if (watched[index].revents != 0) report(index);
        if (watched[1].revents == 0) continue;
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) fail("accept");
        size_t length;
        char *text = received(connection, &length);
        pid_t process = fork();
        if (process < 0) fail("fork");
        if (process == 0) {
            close(connection);
            return run(text, length);
        }
        free(text);
        int descriptor = (int)syscall(SYS_pidfd_open, process, 0);
        if (descriptor < 0) fail("pidfd_open");
        watched[count] = (struct pollfd){.fd = descriptor, .events = POLLIN};
        runs[count].process = process;
        runs[count].connection = connection;
        count++;
    }
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
    return start(starter, argc, argv, init, fini, rtld_fini, stack_end);
}
