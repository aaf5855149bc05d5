/* Takes the place of kdgat in a test: it has the starter at the socket STARTER_SOCKET (see starter.c) run kdgat with its own arguments,
   environment, folder and standard streams, and ends as that run does.

   Signals are passed on. SIGKILL cannot be, and ends this process before the run; SIGALRM kills the run first. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const char SOCKET[] = "STARTER_SOCKET";

static void fail(const char *what) {
    fprintf(stderr, "proxy of kdgat: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int connected(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path == NULL || strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        fail(SOCKET);
    }
    strcpy(address.sun_path, path);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address) != 0) fail(path);
    return connection;
}

static void send_all(int connection, const char *text, size_t length) {
    while (length > 0) {
        ssize_t sent = send(connection, text, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) fail("send");
        text += sent;
        length -= (size_t)sent;
    }
}

static void send_string(int connection, const char *text) {
    send_all(connection, text, strlen(text) + 1);
}

/* The folder, with the standard streams beside it. */
static void send_folder(int connection, char *folder) {
    int streams[] = {0, 1, 2};
    _Alignas(struct cmsghdr) char beside[CMSG_SPACE(sizeof streams)] = {0};
    struct iovec part = {.iov_base = folder, .iov_len = strlen(folder) + 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof beside};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof streams);
    memcpy(CMSG_DATA(header), streams, sizeof streams);
    if (sendmsg(connection, &message, MSG_NOSIGNAL) != (ssize_t)part.iov_len) fail("sendmsg");
}

static void send_request(int connection, int argc, char **argv, char **environment) {
    char *folder = getcwd(NULL, 0), number[16];
    if (folder == NULL) fail("getcwd");
    send_folder(connection, folder);
    snprintf(number, sizeof number, "%d", argc);
    send_string(connection, number);
    for (int index = 0; index < argc; index++) send_string(connection, argv[index]);
    for (; *environment != NULL; environment++)
        if (strncmp(*environment, SOCKET, sizeof SOCKET - 1) != 0) send_string(connection, *environment);
    if (shutdown(connection, SHUT_WR) != 0) fail("shutdown");
}

static int receive_number(int connection, const char *what) {
    int number;
    ssize_t got = recv(connection, &number, sizeof number, MSG_WAITALL);
    if (got == sizeof number) return number;
    if (got >= 0) errno = ECONNRESET;
    fail(what);
    return 0;
}

/* Ends as the run ended. */
static void end(int status) {
    if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
    int number = WTERMSIG(status);
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(number, SIG_DFL);
    sigset_t all;
    sigemptyset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    raise(number);
    _exit(1);
}

int main(int argc, char **argv, char **environment) {
    const int passed_on[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM};
    sigset_t signals;
    sigemptyset(&signals);
    for (size_t index = 0; index < sizeof passed_on / sizeof *passed_on; index++) sigaddset(&signals, passed_on[index]);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    int arrived = signalfd(-1, &signals, SFD_CLOEXEC), connection = connected(getenv(SOCKET));
    if (arrived < 0) fail("signalfd");
    send_request(connection, argc, argv, environment);
    pid_t process = receive_number(connection, "the process ID of the run");
    for (;;) {
        struct pollfd watched[] = {{.fd = connection, .events = POLLIN}, {.fd = arrived, .events = POLLIN}};
        if (poll(watched, 2, -1) < 0) fail("poll");
        if (watched[0].revents != 0) end(receive_number(connection, "the end of the run"));
        struct signalfd_siginfo signal;
        if (read(arrived, &signal, sizeof signal) != sizeof signal) fail("read");
        kill(process, signal.ssi_signo == SIGALRM ? SIGKILL : (int)signal.ssi_signo);
    }
}
