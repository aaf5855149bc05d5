/* Tests of the reception of frames, on a pair of local datagram sockets. */
#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "../can_socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/can.h>

static int failures;
static int ends[2];

static void check(int holds, const char *what)
{
    if (!holds) {
        failures++;
        printf("failed: %s\n", what);
    }
}

static can_result received(uint32_t id, uint8_t length, candump_frame *frame)
{
    struct can_frame sent;
    uint64_t lost = 0;
    memset(&sent, 0, sizeof sent);
    sent.can_id = id;
    sent.can_dlc = length;
    memset(sent.data, 0xa5, sizeof sent.data);
    if (send(ends[1], &sent, sizeof sent, 0) != (ssize_t)sizeof sent) {
        return CAN_FAILED;
    }
    return can_socket_receive(ends[0], frame, &lost);
}

int main(void)
{
    candump_frame frame;
    uint64_t lost = 3;
    const int on = 1;
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0 || setsockopt(ends[0], SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) != 0) {
        perror("socketpair");
        return 1;
    }
    check(can_socket_receive(ends[0], &frame, &lost) == CAN_NOTHING && lost == 3, "nothing has come");
    check(received(0x7df, 3, &frame) == CAN_RECEIVED && frame.id == 0x7df && frame.length == 3, "a frame");
    check(frame.data[2] == 0xa5 && frame.data[3] == 0, "bytes after the length are 0");
    check(frame.time > 1.5e9, "the time of reception");
    check(received(0x18fef100u | CAN_EFF_FLAG, 8, &frame) == CAN_RECEIVED && frame.id == 0x18fef100u, "an extended ID");
    check(received(0x123u | CAN_RTR_FLAG, 8, &frame) == CAN_RECEIVED && frame.length == 0, "a remote frame");
    check(received(0x123u, 15, &frame) == CAN_RECEIVED && frame.length == 8, "a length code above 8");
    check(received(0x20000004u, 8, &frame) == CAN_ERROR_FRAME, "an error frame");
    check(send(ends[1], "short", 5, 0) == 5 && can_socket_receive(ends[0], &frame, &lost) == CAN_FAILED && errno == EPROTO,
          "not a frame");
    check(can_socket_open("a-name-that-is-too-long") < 0, "no such interface");
    (void)close(ends[0]);
    check(can_socket_receive(ends[0], &frame, &lost) == CAN_FAILED && errno == EBADF, "the socket is gone");
    printf(failures == 0 ? "ok\n" : "failed\n");
    return failures == 0 ? 0 : 1;
}
