#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L

#include "input.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "can_socket.h"

#define EXIT_INPUT 2

int input_open(input *in, const char *path, double max_reject_share)
{
    struct stat found;

    memset(in, 0, sizeof *in);
    in->max_reject_share = max_reject_share;
    if (strcmp(path, "-") == 0) {
        in->name = "standard input";
        in->file = STDIN_FILENO;
        in->is_live = 1;
        return 0;
    }
    in->name = path;
    /* Without waiting for the writer of a named pipe. */
    in->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (in->file < 0 || fstat(in->file, &found) != 0) {
        fprintf(stderr, "error: cannot open %s: %s\n", path, strerror(errno));
        return EXIT_INPUT;
    }
    if (S_ISDIR(found.st_mode)) {
        fprintf(stderr, "error: %s is a folder; expected a log of candump -L\n", path);
        return EXIT_INPUT;
    }
    in->is_live = !S_ISREG(found.st_mode);
    return 0;
}

void input_close(input *in)
{
    if (in->file != STDIN_FILENO) {
        (void)close(in->file);
    }
    in->file = -1;
}

int input_is_same(const char *one, const char *other)
{
    struct stat of_one, of_other;
    if (strcmp(one, other) == 0) {
        return 1;
    }
    return stat(one, &of_one) == 0 && stat(other, &of_other) == 0 && of_one.st_dev == of_other.st_dev && of_one.st_ino == of_other.st_ino;
}

int input_open_can(input *in, const char *interface)
{
    memset(in, 0, sizeof *in);
    in->name = interface;
    in->is_can = 1;
    in->is_live = 1;
    in->file = can_socket_open(interface);
    return in->file >= 0 ? 0 : EXIT_INPUT;
}

/* Waits for bytes. Returns 1 if a read will not wait, 0 if nothing has come, -1 on an error. */
static int wait_for(const input *in)
{
    struct pollfd waiting;
    int ready;
    waiting.fd = in->file;
    waiting.events = POLLIN;
    waiting.revents = 0;
    ready = poll(&waiting, 1, INPUT_WAIT_MS);
    return ready < 0 && errno == EINTR ? 0 : ready;
}

static input_result failed(const input *in)
{
    fprintf(stderr, "error: cannot read %s: %s\n", in->name, strerror(errno));
    return INPUT_FAILED;
}

/* Compression that the first bytes name; NULL for none. */
static const char *unpacker(const char *bytes, size_t length)
{
    if (length >= 2 && memcmp(bytes, "\x1f\x8b", 2) == 0) {
        return "zcat";
    }
    if (length >= 4 && memcmp(bytes, "\x28\xb5\x2f\xfd", 4) == 0) {
        return "zstdcat";
    }
    return length >= 6 && memcmp(bytes, "\xfd" "7zXZ", 6) == 0 ? "xzcat" : NULL;
}

static input_result read_lines(input *in)
{
    ssize_t count;

    /* All complete lines were parsed, so at most one begun line is kept, and it is shorter than the buffer. */
    memmove(in->bytes, in->bytes + in->begin, in->end - in->begin);
    in->end -= in->begin;
    in->begin = 0;
    count = read(in->file, in->bytes + in->end, sizeof in->bytes - in->end);
    if (count < 0) {
        return errno == EINTR || errno == EAGAIN ? INPUT_READ : failed(in);
    }
    if (count == 0) {
        in->ended = 1;
        return INPUT_ENDED;
    }
    if (in->lines == 0 && in->end == 0) {
        const char *const program = unpacker(in->bytes, (size_t)count);
        if (program != NULL) {
            fprintf(stderr, "error: %s is compressed; use %s %s | kdgat-car -\n", in->name, program,
                    in->file == STDIN_FILENO ? "LOG" : in->name);
            return INPUT_FAILED;
        }
        /* Some editors write a byte order mark. */
        if (count >= 3 && memcmp(in->bytes, "\xef\xbb\xbf", 3) == 0) {
            in->begin = 3;
        }
    }
    in->end += (size_t)count;
    return INPUT_READ;
}

static input_result read_can(input *in)
{
    in->next_frame = 0;
    in->num_frames = 0;
    while (in->num_frames < INPUT_FRAMES) {
        switch (can_socket_receive(in->file, &in->received[in->num_frames], &in->lost)) {
        case CAN_RECEIVED:
            in->num_frames++;
            break;
        case CAN_ERROR_FRAME:
            in->error_frames++;
            break;
        case CAN_DOWN:
            fprintf(stderr, "warning: %s is down; waiting until it is up again\n", in->name);
            return INPUT_READ;
        case CAN_NOTHING:
            return INPUT_READ;
        case CAN_FAILED:
            return failed(in);
        }
    }
    return INPUT_READ;
}

input_result input_read(input *in)
{
    if (in->is_live) {
        const int ready = wait_for(in);
        if (ready < 0) {
            return failed(in);
        }
        if (ready == 0) {
            return INPUT_READ;
        }
    }
    return in->is_can ? read_can(in) : read_lines(in);
}

/* Copies the beginning of a line for a message, with \xNN for what cannot be printed. */
static void quote(char *to, const char *line, size_t length)
{
    static const char digits[] = "0123456789abcdef";
    size_t at;
    for (at = 0; at < length && at < INPUT_QUOTED; at++) {
        const unsigned char byte = (unsigned char)line[at];
        if (byte >= 0x20u && byte < 0x7fu) {
            *to++ = (char)byte;
        } else {
            *to++ = '\\';
            *to++ = 'x';
            *to++ = digits[byte >> 4];
            *to++ = digits[byte & 15u];
        }
    }
    *to = '\0';
}

static void add_bad_line(input *in, const char *line, size_t length)
{
    in->bad_lines++;
    if (in->bad_lines == 1u) {
        in->first_bad_line = in->lines;
        quote(in->first_bad, line, length);
        fprintf(stderr, "warning: %s:%" PRIu64 ": not a line of candump -L: \"%s\"; such lines are skipped and counted\n", in->name,
                in->lines, in->first_bad);
    }
}

double input_reject_share(const input *in)
{
    return in->recent_rows > 0u ? (double)in->recent_bad / (double)in->recent_rows : 0.0;
}

/* Counts a line among the last ones. */
static void add_recent(input *in, int is_bad)
{
    uint8_t *const byte = &in->recent[in->recent_next / 8u];
    const uint8_t bit = (uint8_t)(1u << (in->recent_next % 8u));
    if ((*byte & bit) != 0u) {
        in->recent_bad--;
    }
    if (is_bad) {
        in->recent_bad++;
        *byte = (uint8_t)(*byte | bit);
    } else {
        *byte = (uint8_t)(*byte & ~bit);
    }
    if (in->recent_rows < INPUT_RECENT_LINES) {
        in->recent_rows++;
    }
    in->recent_next = (in->recent_next + 1u) % INPUT_RECENT_LINES;
}

/* Refuses a log with too many bad lines among the last ones; reports them on a stream that goes on. */
static void judge_recent(input *in)
{
    const double share = input_reject_share(in);
    const int is_unreadable = in->recent_rows == INPUT_RECENT_LINES && share > in->max_reject_share;
    if (!in->goes_on) {
        in->is_refused = in->is_refused || is_unreadable;
    } else if (is_unreadable && !in->is_unreadable) {
        fprintf(stderr,
                "warning: %s: %u of the last %u lines are not of candump -L (the first of all at line %" PRIu64
                "); they are left out, and the detection goes on\n",
                in->name, (unsigned)in->recent_bad, INPUT_RECENT_LINES, in->first_bad_line);
    }
    /* A share about the limit is not reported again and again. */
    in->is_unreadable = is_unreadable || (in->is_unreadable && 2.0 * share > in->max_reject_share);
}

/* Counts a line; returns 1 if it is a frame. */
static int take_line(input *in, const char *line, size_t length, candump_frame *frame)
{
    candump_row row;

    in->lines++;
    row = candump_parse(line, length, frame);
    if (row == CANDUMP_EMPTY) {
        return 0;
    }
    in->rows++;
    add_recent(in, row == CANDUMP_REJECTED);
    if (row == CANDUMP_REJECTED) {
        add_bad_line(in, line, length);
    } else if (row == CANDUMP_ERROR) {
        in->error_frames++;
    }
    judge_recent(in);
    return row == CANDUMP_FRAME;
}

static int next_of_lines(input *in, candump_frame *frame)
{
    while (in->begin < in->end && !in->is_refused) {
        const char *const line = in->bytes + in->begin;
        const size_t rest = in->end - in->begin;
        const char *const newline = memchr(line, '\n', rest);
        size_t length = newline != NULL ? (size_t)(newline - line) : rest;

        if (newline == NULL && !in->ended && rest <= CANDUMP_MOST_BYTES) {
            return 0; /* a begun line */
        }
        in->begin += newline != NULL ? length + 1u : length;
        if (in->skipping) {
            in->skipping = newline == NULL;
            continue;
        }
        /* A line that is too long is counted once, at its beginning. */
        in->skipping = newline == NULL;
        if (take_line(in, line, length, frame)) {
            return 1;
        }
    }
    return 0;
}

int input_next(input *in, candump_frame *frame)
{
    if (in->is_can) {
        if (in->next_frame == in->num_frames) {
            return 0;
        }
        *frame = in->received[in->next_frame++];
    } else if (!next_of_lines(in, frame)) {
        return 0;
    }
    in->frames++;
    return 1;
}

int input_is_wrong(const input *in)
{
    if (in->is_can) {
        return 0;
    }
    if (in->ended && in->rows == 0u) {
        fprintf(stderr, "error: %s is empty; expected lines of candump -L\n", in->name);
        return 1;
    }
    if (!in->is_refused && !(in->ended && (double)in->bad_lines > in->max_reject_share * (double)in->rows)) {
        return 0;
    }
    if (in->goes_on && in->bad_lines < in->rows) {
        fprintf(stderr, "warning: %s: %" PRIu64 " of %" PRIu64 " lines are not of candump -L; record with candump -L, or raise "
                "--max-reject-share\n", in->name, in->bad_lines, in->rows);
        return 0;
    }
    fprintf(stderr,
            "error: %s: %" PRIu64 " of %" PRIu64 " lines are not of candump -L, the first at line %" PRIu64
            ": \"%s\"; record with candump -L, convert the log, or raise --max-reject-share\n",
            in->name, in->bad_lines, in->rows, in->first_bad_line, in->first_bad);
    return 1;
}

void input_notes(const input *in)
{
    if (in->error_frames > 0u) {
        fprintf(stderr, "%" PRIu64 " CAN error frames skipped\n", in->error_frames);
    }
    if (in->bad_lines > 0u) {
        fprintf(stderr, "%" PRIu64 " lines skipped: not of candump -L, the first at %s:%" PRIu64 ": \"%s\"\n", in->bad_lines, in->name,
                in->first_bad_line, in->first_bad);
    }
    if (in->lost > 0u) {
        fprintf(stderr, "%" PRIu64 " frames lost by the kernel, because the program could not keep up\n", in->lost);
    }
}
