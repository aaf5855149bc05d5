/* Tests of the parser: the lines of kdgat's own reader, and random bytes (run it with -fsanitize=address,undefined). */
#include "../candump.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static void expect(const char *line, candump_row row, double time, uint32_t id, unsigned length, const char *data)
{
    candump_frame frame;
    char hex[17];
    unsigned position;
    candump_row found;
    memset(&frame, 0, sizeof frame);
    found = candump_parse(line, strlen(line), &frame);
    for (position = 0; position < 8u; position++) {
        sprintf(hex + 2u * position, "%02X", frame.data[position]);
    }
    if (found != row || frame.time != time || frame.id != id || frame.length != length || strcmp(hex, data) != 0) {
        failures++;
        printf("%s: row %d, time %.17g, id %X, %u bytes, %s\n", line, (int)found, frame.time, (unsigned)frame.id,
               (unsigned)frame.length, hex);
    }
}

#define NONE "0000000000000000"

/* Random bytes, and random changes of a right line: nothing outside the line is read, and *frame is set only for a frame. */
static void random_lines(unsigned count)
{
    static const char right[] = "(1436509052.249713) can0 1FFFFFFF##1AA.BB_9 R";
    static const char letters[] = "()#_.R T0123456789ABCDEFabcdefgx+-e\r\t";
    uint64_t state = 88172645463325252u;
    for (; count > 0; count--) {
        size_t length = sizeof right - 1u, position;
        char *line;
        candump_frame frame, before;
        candump_row row;
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        length = (state & 3u) == 0 ? (size_t)(state >> 8 & 63u) : length - (size_t)(state >> 8 & 3u);
        /* A block of its own for each line, so that a sanitizer sees every byte too far. */
        line = malloc(length > 0 ? length : 1u);
        if (line == NULL) {
            exit(1);
        }
        for (position = 0; position < length; position++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if ((state & 7u) != 0 && position < sizeof right - 1u) {
                line[position] = right[position];
            } else {
                line[position] = (state & 8u) != 0 ? letters[(state >> 8) % (sizeof letters - 1u)] : (char)(state >> 16);
            }
        }
        memset(&frame, 0xA5, sizeof frame);
        before = frame;
        row = candump_parse(line, length, &frame);
        if (row != CANDUMP_FRAME && memcmp(&frame, &before, sizeof frame) != 0) {
            failures++;
            printf("a line that is no frame has set one\n");
        }
        if (row == CANDUMP_FRAME && (frame.id > 0x1FFFFFFFu || frame.length > 64u || !(frame.time - frame.time == 0.0))) {
            failures++;
            printf("a frame out of range: id %X, %u bytes\n", (unsigned)frame.id, (unsigned)frame.length);
        }
        free(line);
    }
}

int main(void)
{
    expect("(1436509052.249713) vcan0 044#2A366C2BBA", CANDUMP_FRAME, 1436509052.249713, 0x44, 5, "2A366C2BBA000000");
    expect("(1.0) can0 7DF#0102030405060708 R", CANDUMP_FRAME, 1.0, 0x7DF, 8, "0102030405060708");
    expect("  (1.5)\tcan0  7df#1a T\r", CANDUMP_FRAME, 1.5, 0x7DF, 1, "1A00000000000000");
    expect("(1.0) can0 123#", CANDUMP_FRAME, 1.0, 0x123, 0, NONE);
    expect("(1.0) can0 123#R", CANDUMP_FRAME, 1.0, 0x123, 0, NONE);
    expect("(1.0) can0 123#R8", CANDUMP_FRAME, 1.0, 0x123, 0, NONE);
    expect("(1.0) can0 1FFFFFFF#01.2.FF", CANDUMP_FRAME, 1.0, 0x1FFFFFFF, 3, "0102FF0000000000");
    expect("(1.0) can0 123##1000102030405060708", CANDUMP_FRAME, 1.0, 0x123, 9, "0001020304050607");
    expect("(1.0) can0 123#0011223344556677_B", CANDUMP_FRAME, 1.0, 0x123, 8, "0011223344556677");
    expect("(1e3) can0 123#00", CANDUMP_FRAME, 1000.0, 0x123, 1, NONE);
    expect("(-0.5) can0 123#00", CANDUMP_FRAME, -0.5, 0x123, 1, NONE);
    expect("(12345678901234567890.5) can0 123#00", CANDUMP_FRAME, 12345678901234567890.5, 0x123, 1, NONE);
    expect("(1.0) can0 20000004#0000000000000000", CANDUMP_ERROR, 0.0, 0, 0, NONE);
    expect("", CANDUMP_EMPTY, 0.0, 0, 0, NONE);
    expect(" \t\r", CANDUMP_EMPTY, 0.0, 0, 0, NONE);
    {
        static const char *const rejected[] = {
            "garbage",
            "(1.0) can0",
            "(1.0) can0 123",
            "(1.0) can0 XYZ#00",
            "(1.0) can0 #00",
            "(1.0) can0 123#0",
            "(1.0) can0 123#0G",
            "(1.0) can0 123#001122334455667788",
            "(1.0) can0 123##",
            "(1.0) can0 123##G00",
            "(1.0) can0 123#Rx",
            "(1.0) can0 123#R1234",
            "(1.0) can0 123#00..11",
            "(1.0) can0 123#000.11",
            "(1.0) can0 40000000#00",
            "(1.0) can0 000000123#00",
            "(1.0) can0 123#00 X",
            "(1.0) can0 123#00 R R",
            "1.0 can0 123#00",
            "(1.0 can0 123#00",
            "() can0 123#00",
            "(nan) can0 123#00",
            "(inf) can0 123#00",
            "(1e999) can0 123#00",
            "(0x10) can0 123#00",
            "(1.0.0) can0 123#00",
        };
        size_t position;
        for (position = 0; position < sizeof rejected / sizeof *rejected; position++) {
            expect(rejected[position], CANDUMP_REJECTED, 0.0, 0, 0, NONE);
        }
    }
    random_lines(1000000u);
    printf(failures == 0 ? "ok\n" : "failed\n");
    return failures == 0 ? 0 : 1;
}
