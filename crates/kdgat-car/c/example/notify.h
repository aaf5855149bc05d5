/* Datagrams to others: events to the system's log, and signs of life to systemd. */
#ifndef KDGAT_NOTIFY_H
#define KDGAT_NOTIFY_H

#include <stdint.h>

#include "event.h"

/* A connection to the system's log. Contents are private, but for the count. */
typedef struct system_log {
    const char *path; /* NULL: nothing is sent */
    int file;
    uint64_t lost; /* messages that the daemon could not take */
} system_log;

/* Connects to the socket at `path`, or to none for NULL. Returns 0 after a message to standard error if nobody listens. */
int system_log_open(system_log *to, const char *path);

/* Sends an event. Never waits: a message that cannot be sent now is lost. Connects again to a daemon that was restarted. */
void system_log_send(system_log *to, const event *about);

/* The service manager, if this program is its service (sd_notify(3)). Contents are private. */
typedef struct service {
    double period_seconds; /* from one sign of life to the next; 0: none is expected */
    double last;
} service;

/* Tells systemd that the program is ready. now is the machine's clock in seconds. */
void service_ready(service *manager, double now);

/* Sends a sign of life if one is due: twice as often as the watchdog expects it. */
void service_alive(service *manager, double now);

/* Tells systemd that the program ends. */
void service_stopping(void);

#endif
