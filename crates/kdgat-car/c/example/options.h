/* Command line of kdgat-car: the options of `kdgat detect` that a program without the trainer can have, with the same names. */
#ifndef KDGAT_OPTIONS_H
#define KDGAT_OPTIONS_H

#include "alarm.h"

typedef struct options {
    const char *file;      /* "-" is standard input; NULL with an interface */
    char **files;          /* of a calibration: the logs, of which `file` is the first */
    int num_files;
    const char *interface; /* of SocketCAN, or NULL */
    int has_threshold;
    double threshold;
    const char *load; /* file of a calibration, or NULL */
    const char *save;
    double calibrate_seconds; /* 0: detect; infinite: all traffic */
    int replaces;
    double max_reject_share; /* of the lines */
    int alarms;
    alarm_rule rule;
    double silence_seconds;   /* 0: not watched */
    double heartbeat_seconds; /* 0: none */
    const char *exec;   /* NULL: none */
    const char *syslog; /* path of the socket, or NULL */
} options;

typedef enum options_result { OPTIONS_RUN, OPTIONS_PRINTED, OPTIONS_WRONG } options_result;

/* Reads the command line. OPTIONS_PRINTED: help or version are printed. OPTIONS_WRONG: an error is printed to standard error. */
options_result options_read(options *read, int count, char **arguments);

/* Reads a duration such as 500ms, 10s, 5min or 1h, at most 24h; returns 0 for anything else. */
int options_duration(const char *text, double *seconds);

#endif
