/* Children of kdgat that run kdgat: the tasks of a sweep, and processes that train together. They, too, are forks of a process that has loaded
   libtorch, and yet children of the process that starts them.

   Before `main`, a fork of the process waits for requests. `posix_spawnp`, which Rust's standard library calls, asks it for a process if the
   program is kdgat itself; that process is made with CLONE_PARENT, so that whoever called can wait for it and signal it as for any other. The
   file actions of such a call are noted when they are made: Rust's are duplicates of descriptors, and a folder. */
#define _GNU_SOURCE
#include "children.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STREAMS = 3, MAX_REQUEST = 1 << 17 };

/* The end of the pair with which this process asks, or -1. */
static int asking = -1;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* What a thread's next call of `posix_spawnp` does to descriptors and folder. */
static _Thread_local struct {
    const void *actions;
    int sources[STREAMS];
    const char *folder;
} noted;

static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

int posix_spawn_file_actions_init(posix_spawn_file_actions_t *actions) {
    noted.actions = actions;
    noted.folder = NULL;
    for (int stream = 0; stream < STREAMS; stream++) noted.sources[stream] = stream;
    return ((int (*)(posix_spawn_file_actions_t *))next("posix_spawn_file_actions_init"))(actions);
}

int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int source, int target) {
    if (actions == noted.actions && target >= 0 && target < STREAMS) noted.sources[target] = source;
    return ((int (*)(posix_spawn_file_actions_t *, int, int))next("posix_spawn_file_actions_adddup2"))(actions, source, target);
}

int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t *actions, const char *folder) {
    /* The caller keeps the string until it has called `posix_spawnp`. */
    if (actions == noted.actions) noted.folder = folder;
    return ((int (*)(posix_spawn_file_actions_t *, const char *))next("posix_spawn_file_actions_addchdir_np"))(actions, folder);
}

/* True for variables that libraries may read when they are loaded. */
static int is_read_by_libraries(const char *variable) {
    static const char *const beginnings[] = {"LD_",   "OMP_",   "GOMP_",    "KMP_",  "MKL_",  "MALLOC_", "GLIBC_",
                                             "CUDA_", "TORCH_", "PYTORCH_", "ATEN_", "DNNL_", "ONEDNN_"};
    for (size_t index = 0; index < sizeof beginnings / sizeof *beginnings; index++)
        if (strncmp(variable, beginnings[index], strlen(beginnings[index])) == 0) return 1;
    return 0;
}

static int has(char *const *environment, const char *variable) {
    for (; *environment != NULL; environment++)
        if (strcmp(*environment, variable) == 0) return 1;
    return 0;
}

/* True if libraries would find the same variables in both. */
static int loads_alike(char *const *one, char *const *other) {
    for (char *const *variable = one; *variable != NULL; variable++)
        if (is_read_by_libraries(*variable) && !has(other, *variable)) return 0;
    for (char *const *variable = other; *variable != NULL; variable++)
        if (is_read_by_libraries(*variable) && !has(one, *variable)) return 0;
    return 1;
}

static int is_this_program(const char *path) {
    char own[4096];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (length < 0) return 0;
    own[length] = 0;
    return strcmp(own, path) == 0;
}

/* Asks for a process. Returns its ID, or -1 if it has to be started otherwise. */
static pid_t asked(char *const *arguments, char *const *environment, int has_own_group) {
    char *text = malloc(MAX_REQUEST), *at = text, *end = text + MAX_REQUEST;
    if (text == NULL) return -1;
    int argc = 0;
    while (arguments[argc] != NULL) argc++;
    at += snprintf(at, MAX_REQUEST, "%d", has_own_group) + 1;
    at += snprintf(at, (size_t)(end - at), "%s", noted.folder == NULL ? "." : noted.folder) + 1;
    at += snprintf(at, (size_t)(end - at), "%d", argc) + 1;
    for (int list = 0; list < 2; list++)
        for (char *const *string = list == 0 ? arguments : environment; *string != NULL; string++) {
            size_t length = strlen(*string) + 1;
            if (length > (size_t)(end - at)) {
                free(text);
                return -1;
            }
            memcpy(at, *string, length);
            at += length;
        }
    _Alignas(struct cmsghdr) char beside[CMSG_SPACE(sizeof noted.sources)] = {0};
    struct iovec part = {.iov_base = text, .iov_len = (size_t)(at - text)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof beside};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof noted.sources);
    memcpy(CMSG_DATA(header), noted.sources, sizeof noted.sources);
    pid_t process = -1;
    pthread_mutex_lock(&one_at_a_time);
    if (sendmsg(asking, &message, MSG_NOSIGNAL) != (ssize_t)part.iov_len || recv(asking, &process, sizeof process, 0) != sizeof process) process = -1;
    pthread_mutex_unlock(&one_at_a_time);
    free(text);
    return process;
}

int posix_spawnp(pid_t *process, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const *arguments, char *const *environment) {
    if (asking >= 0 && actions == noted.actions && is_this_program(file) && loads_alike(environ, environment)) {
        short flags = 0;
        pid_t group = -1;
        if (attributes != NULL) posix_spawnattr_getflags(attributes, &flags);
        if (flags & POSIX_SPAWN_SETPGROUP) posix_spawnattr_getpgroup(attributes, &group);
        int has_own_group = group == 0;
        if (group <= 0 && !(flags & POSIX_SPAWN_SETSID)) {
            pid_t started = asked(arguments, environment, has_own_group);
            if (started > 0) {
                *process = started;
                return 0;
            }
        }
    }
    int (*spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *, char *const *) =
        next("posix_spawnp");
    return spawn(process, file, actions, attributes, arguments, environment);
}

/* Where the C library keeps the ID of a thread, which `fork` sets in a child and a bare system call does not; NULL if it is not found. */
static pid_t *kept_thread_id(void) {
    pid_t *found = NULL, own = (pid_t)syscall(SYS_gettid);
    for (size_t at = 0x200; at < 0x400; at += sizeof own) {
        pid_t *here = (pid_t *)((char *)pthread_self() + at);
        if (*here != own) continue;
        if (found != NULL) return NULL;
        found = here;
    }
    return found;
}

/* Forks into a child of this process's parent. */
static pid_t sibling(pid_t *thread_id) {
    const unsigned long flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
#ifdef __x86_64__
    return (pid_t)syscall(SYS_clone, flags, NULL, NULL, thread_id, NULL);
#else
    return (pid_t)syscall(SYS_clone, flags, NULL, NULL, NULL, thread_id);
#endif
}

/* In the new process: what `posix_spawnp` would have done, and then `main`. */
static int run(main_function program, char *text, const char *end, const int sources[STREAMS]) {
    int has_own_group = atoi(text);
    char *folder = text + strlen(text) + 1, *number = folder + strlen(folder) + 1;
    int argc = atoi(number), strings = 0;
    char *first = number + strlen(number) + 1;
    for (const char *at = first; at < end; at += strlen(at) + 1) strings++;
    char **list = calloc((size_t)strings + 2, sizeof *list);
    if (list == NULL) abort();
    for (int index = 0; index < strings; index++, first += strlen(first) + 1) list[index < argc ? index : index + 1] = first;
    if (has_own_group) setpgid(0, 0);
    for (int stream = 0; stream < STREAMS; stream++)
        if (dup2(sources[stream], stream) < 0) abort();
    for (int stream = 0; stream < STREAMS; stream++) close(sources[stream]);
    if (chdir(folder) != 0) abort();
    prctl(PR_SET_NAME, "kdgat");
    environ = list + argc + 1;
    return with_children(program, argc, list, environ);
}

/* Waits for requests until nobody can ask any more. Returns what `main` does, in a new process. */
static int serve(main_function program, int socket) {
    char *text = malloc(MAX_REQUEST);
    pid_t *thread_id = kept_thread_id();
    if (text == NULL || thread_id == NULL) _exit(1);
    for (;;) {
        int sources[STREAMS];
        _Alignas(struct cmsghdr) char beside[CMSG_SPACE(sizeof sources)];
        struct iovec part = {.iov_base = text, .iov_len = MAX_REQUEST};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof beside};
        ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) _exit(0);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header == NULL || header->cmsg_type != SCM_RIGHTS) _exit(1);
        memcpy(sources, CMSG_DATA(header), sizeof sources);
        pid_t process = sibling(thread_id);
        if (process == 0) {
            close(socket);
            return run(program, text, text + got, sources);
        }
        for (int stream = 0; stream < STREAMS; stream++) close(sources[stream]);
        /* -1 if there is none. */
        (void)!send(socket, &process, sizeof process, MSG_NOSIGNAL);
    }
}

int with_children(main_function program, int argc, char **argv, char **environment) {
    static const char *const starting[] = {"launch", "pipeline", "sweep"};
    int starts_others = 0, pair[2];
    for (size_t index = 0; argc > 1 && index < sizeof starting / sizeof *starting; index++) starts_others |= strcmp(argv[1], starting[index]) == 0;
    asking = -1;
    if (!starts_others || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return program(argc, argv, environment);
    int room = 2 * MAX_REQUEST;
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    pid_t server = fork();
    if (server == 0) {
        close(pair[0]);
        /* It must not keep streams open that others wait for, nor get signals from a terminal. Tests know it by its name. */
        int nothing = open("/dev/null", O_RDWR);
        for (int stream = 0; stream < STREAMS; stream++) dup2(nothing, stream);
        if (nothing >= STREAMS) close(nothing);
        setpgid(0, 0);
        prctl(PR_SET_NAME, "starter");
        return serve(program, pair[1]);
    }
    close(pair[1]);
    if (server < 0) close(pair[0]);
    else asking = pair[0];
    return program(argc, argv, environment);
}
