#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "can_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <linux/can.h>
#include <linux/can/error.h>
#include <linux/can/raw.h>

/* Receive buffer: about a second of a full bus. The kernel may grant less. */
#define BUFFER_BYTES (4 * 1024 * 1024)

static int refuse(int file, const char *interface, const char *what)
{
    fprintf(stderr, "error: --interface %s: %s: %s\n", interface, what, strerror(errno));
    if (file >= 0) {
        (void)close(file);
    }
    return -1;
}

int can_socket_open(const char *interface)
{
    const can_err_mask_t errors = CAN_ERR_MASK;
    const int on = 1, buffer = BUFFER_BYTES;
    struct ifreq request;
    struct sockaddr_can address;
    const int file = socket(PF_CAN, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, CAN_RAW);

    if (file < 0) {
        return refuse(file, interface, "no socket for CAN (is the kernel's module can_raw there?)");
    }
    memset(&request, 0, sizeof request);
    if (strlen(interface) >= sizeof request.ifr_name) {
        errno = ENODEV;
        return refuse(file, interface, "the name is too long");
    }
    memcpy(request.ifr_name, interface, strlen(interface));
    if (ioctl(file, SIOCGIFINDEX, &request) != 0) {
        return refuse(file, interface, "no such interface (see ip link show type can)");
    }
    /* Error frames are counted; the times are those of reception, as candump prints them. */
    if (setsockopt(file, SOL_CAN_RAW, CAN_RAW_ERR_FILTER, &errors, sizeof errors) != 0 ||
        setsockopt(file, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) != 0 ||
        setsockopt(file, SOL_SOCKET, SO_RXQ_OVFL, &on, sizeof on) != 0) {
        return refuse(file, interface, "cannot set the socket's options");
    }
    /* Helps against bursts; the limit net.core.rmem_max applies, and a smaller buffer works too. */
    (void)setsockopt(file, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    memset(&address, 0, sizeof address);
    address.can_family = AF_CAN;
    address.can_ifindex = request.ifr_ifindex;
    if (bind(file, (const struct sockaddr *)&address, sizeof address) != 0) {
        return refuse(file, interface, "cannot listen");
    }
    return file;
}

/* Sets the frame's time, and the number of frames dropped in the life of the socket. */
static void read_ancillary(struct msghdr *message, candump_frame *frame, uint32_t *dropped)
{
    struct cmsghdr *part;
    for (part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET) {
            continue;
        }
        if (part->cmsg_type == SO_TIMESTAMP) {
            struct timeval time;
            memcpy(&time, CMSG_DATA(part), sizeof time);
            frame->time = (double)time.tv_sec + 1e-6 * (double)time.tv_usec;
        } else if (part->cmsg_type == SO_RXQ_OVFL) {
            memcpy(dropped, CMSG_DATA(part), sizeof *dropped);
        }
    }
}

can_result can_socket_receive(int file, candump_frame *frame, uint64_t *lost)
{
    union {
        struct cmsghdr aligned;
        char bytes[256];
    } ancillary;
    struct can_frame received;
    struct iovec part;
    struct msghdr message;
    uint32_t dropped = (uint32_t)*lost;
    ssize_t count;

    memset(&received, 0, sizeof received);
    memset(&message, 0, sizeof message);
    part.iov_base = &received;
    part.iov_len = sizeof received;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.bytes;
    message.msg_controllen = sizeof ancillary.bytes;
    count = recvmsg(file, &message, MSG_DONTWAIT);
    if (count < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
            return CAN_NOTHING;
        }
        return errno == ENETDOWN ? CAN_DOWN : CAN_FAILED;
    }
    if ((size_t)count < sizeof received) {
        errno = EPROTO;
        return CAN_FAILED;
    }
    memset(frame, 0, sizeof *frame);
    read_ancillary(&message, frame, &dropped);
    /* The kernel counts in 32 bits; the difference is right across their end. */
    *lost += (uint32_t)(dropped - (uint32_t)*lost);
    if ((received.can_id & CAN_ERR_FLAG) != 0u) {
        return CAN_ERROR_FRAME;
    }
    frame->id = received.can_id & ((received.can_id & CAN_EFF_FLAG) != 0u ? CAN_EFF_MASK : CAN_SFF_MASK);
    /* A remote frame states a length but carries no data. */
    if ((received.can_id & CAN_RTR_FLAG) == 0u) {
        frame->length = received.can_dlc <= CAN_MAX_DLEN ? received.can_dlc : CAN_MAX_DLEN;
        memcpy(frame->data, received.data, frame->length);
    }
    return CAN_RECEIVED;
}
