/* Parser of a line of `candump -L`: `(1436509052.249713) can0 044#2A366C2BBA`.
 *
 * It accepts what kdgat's own reader of this format accepts: CAN FD frames (`ID##F...`), remote frames (`ID#R`), dots between bytes,
 * a data length code after `_`, a direction (`R` or `T`) at the end, and any number as a time. */
#ifndef KDGAT_CANDUMP_H
#define KDGAT_CANDUMP_H

#include <stddef.h>
#include <stdint.h>

/* Longest line that can be a frame; longer ones are rejected. */
#define CANDUMP_MOST_BYTES 1024

typedef enum candump_row {
    CANDUMP_FRAME,    /* *frame is set */
    CANDUMP_ERROR,    /* an error frame of SocketCAN, which is no traffic */
    CANDUMP_EMPTY,    /* only blanks */
    CANDUMP_REJECTED  /* not a frame */
} candump_row;

typedef struct candump_frame {
    double time;     /* seconds, finite */
    uint32_t id;     /* at most 29 bits */
    uint8_t length;  /* payload bytes on the bus: 0 to 64 */
    uint8_t data[8]; /* the first eight, padded with zeros */
} candump_frame;

/* Parses a line of `length` bytes without its newline; any bytes are allowed. *frame is set only for CANDUMP_FRAME. */
candump_row candump_parse(const char *line, size_t length, candump_frame *frame);

#endif
