/* A raw socket of SocketCAN: classic frames with the kernel's time of reception; CAN FD is off. */
#ifndef KDGAT_CAN_SOCKET_H
#define KDGAT_CAN_SOCKET_H

#include <stdint.h>

#include "candump.h"

typedef enum can_result {
    CAN_RECEIVED,    /* *frame is set */
    CAN_ERROR_FRAME, /* the controller reports an error, which is no traffic */
    CAN_NOTHING,     /* nothing has come */
    CAN_DOWN,        /* the interface was shut down; frames come again when it is up */
    CAN_FAILED       /* errno says why; the interface may be gone */
} can_result;

/* Opens an interface. Returns a descriptor, or -1 after a message to standard error. */
int can_socket_open(const char *interface);

/* Receives a frame without waiting. Adds the frames that the kernel has dropped since the last one to *lost. Also works on a datagram
 * socket of another family that carries `struct can_frame` (tests). */
can_result can_socket_receive(int file, candump_frame *frame, uint64_t *lost);

#endif
