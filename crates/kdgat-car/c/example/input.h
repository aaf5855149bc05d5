/* Frames of a log of `candump -L`, of a stream of such lines, or of a SocketCAN interface.
 *
 * The memory is fixed: a block of bytes or of frames. A read waits for a silent stream at most INPUT_WAIT_MS, so that the caller can do
 * other things. */
#ifndef KDGAT_INPUT_H
#define KDGAT_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "candump.h"

#define INPUT_WAIT_MS 100
#define INPUT_BYTES (128u * 1024u)
#define INPUT_FRAMES 256u
/* Last lines among which the share of bad ones is taken. */
#define INPUT_RECENT_LINES 1000u
/* Bytes of a bad line that are quoted. */
#define INPUT_QUOTED 60u

typedef struct input {
    int file; /* descriptor */
    int is_can;
    int is_live;      /* frames come as they are sent */
    int goes_on;      /* bad lines are reported, and do not end the input: garbage must not switch a detector off */
    const char *name; /* in messages */
    double max_reject_share;
    int ended;
    /* Counts. */
    uint64_t frames;
    uint64_t error_frames;
    uint64_t lines;
    uint64_t bad_lines;
    uint64_t rows; /* lines that are not blank */
    uint64_t lost; /* frames that the kernel dropped, because the program was too slow */
    uint64_t first_bad_line;
    char first_bad[4u * INPUT_QUOTED + 1u];
    /* The last lines that are not blank: a bit for each, 1 for a bad one. */
    uint8_t recent[(INPUT_RECENT_LINES + 7u) / 8u];
    uint32_t recent_next, recent_rows, recent_bad;
    int is_unreadable; /* too many of the last lines are bad, and this was reported */
    int is_refused;    /* too many bad lines */
    /* Bytes of lines that were not parsed yet. */
    size_t begin, end;
    int skipping; /* within a line that is too long */
    char bytes[INPUT_BYTES];
    /* Frames of a bus that were not taken yet. */
    size_t next_frame, num_frames;
    candump_frame received[INPUT_FRAMES];
} input;

typedef enum input_result {
    INPUT_READ,   /* frames or nothing have come */
    INPUT_ENDED,  /* no more come */
    INPUT_FAILED  /* an error is printed to standard error */
} input_result;

/* Opens a file, or standard input for "-". Returns 0, or after a message to standard error the exit code. */
int input_open(input *in, const char *path, double max_reject_share);

/* Closes a file, before another one is opened. */
void input_close(input *in);

/* Returns 1 if both paths name one file. */
int input_is_same(const char *one, const char *other);

/* Opens a CAN interface; as input_open. */
int input_open_can(input *in, const char *interface);

/* Reads once. Take all frames with input_next before the next read, and after INPUT_ENDED. */
input_result input_read(input *in);

/* Takes the next frame; returns 0 if another read is needed. */
int input_next(input *in, candump_frame *frame);

/* Share of bad lines among the last INPUT_RECENT_LINES, from 0 to 1; 0 before the first line, and for an interface. */
double input_reject_share(const input *in);

/* Prints why an ended or refused input is not one of candump -L; returns 0 if it is one. Of a live stream that goes on, some lines must be
 * good; too many bad ones are a warning. */
int input_is_wrong(const input *in);

/* Prints what was skipped or lost. */
void input_notes(const input *in);

#endif
