/* --exec: runs a command with sh at each event, one call after the other, without ever holding up the stream. */
#ifndef KDGAT_HOOK_H
#define KDGAT_HOOK_H

#include <stdint.h>
#include <sys/types.h>

#include "event.h"

/* Calls that wait for the one that runs; more are dropped. */
#define HOOK_WAITING 64u

/* Contents are private. */
typedef struct hook {
    const char *command; /* NULL: nothing is run */
    pid_t child;         /* 0: no call runs */
    char **environment;  /* of this program, with free places for the event's variables */
    size_t inherited;
    uint32_t first, waiting;
    event queue[HOOK_WAITING];
    uint64_t ended, failed, dropped;
} hook;

/* Prepares the calls of a command, or none for NULL. Returns 0 if there is no memory for the environment. */
int hook_start(hook *calls, const char *command);

/* Queues a call for an event; drops it if too many wait. */
void hook_call(hook *calls, const event *about);

/* Notices the end of a call, and starts the next one. Call it often: it never waits. */
void hook_pump(hook *calls);

/* Waits at most `seconds` for the queued calls, and prints what became of all. Later calls are not made. */
void hook_finish(hook *calls, double seconds);

#endif
