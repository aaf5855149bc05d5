/* Fuzz target for an exported detector, for libFuzzer. An input is a byte of flags, changes of a saved calibration if the flags say so, and
 * frames:
 *
 *   flags    LOADS, EXPLAINS, CALIBRATES; the other bits have no meaning
 *   changes  with LOADS: their number, then three bytes each: a place in the saved calibration and the bits to change there. The checksum
 *            is made to fit
 *   frames   the first byte of each says what the next ones are: see read_frame. They are repeated until windows are complete
 *
 * Bytes that the input lacks are 0. With -DKDGAT_FUZZ_MAIN, a program that feeds the files of its command line to the target. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kdgat_calibrate.h"

#define LOADS 1u
#define EXPLAINS 2u
#define CALIBRATES 4u

/* Frames of an input; the bytes after them are ignored. */
#define MOST_FRAMES 256u
/* Frames that complete at least three windows. */
#define FEWEST_FRAMES (2u * KDGAT_STRIDE + KDGAT_WINDOW + 1u)
/* Frames of a calibration: more than the fewest windows. */
#define CALIBRATION_FRAMES ((KDGAT_FEWEST_WINDOWS + 2u) * KDGAT_STRIDE + KDGAT_WINDOW + 1u)

/* A frame of the input. */
typedef struct {
    kdgat_frame frame; /* its time is set if it is absolute */
    double step;       /* seconds since the frame before it, otherwise */
    int is_absolute;
} input_frame;

typedef struct {
    const uint8_t *bytes;
    size_t left;
} reader;

static kdgat_state state;
static kdgat_calibration work;
static uint8_t saved[KDGAT_SAVED_BYTES];
static int is_ready;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void expect(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void take(reader *from, void *to, size_t number)
{
    const size_t taken = number < from->left ? number : from->left;
    memset(to, 0, number);
    memcpy(to, from->bytes, taken);
    from->bytes += taken;
    from->left -= taken;
}

static uint8_t take_byte(reader *from)
{
    uint8_t byte;
    take(from, &byte, 1u);
    return byte;
}

/* Reads a frame. Two bits of the first byte each select its time, its ID and its payload; one more, its length. */
static input_frame read_frame(reader *from, const kdgat_frame *before)
{
    const uint8_t kinds = take_byte(from);
    input_frame input;
    uint8_t byte;

    memset(&input, 0, sizeof input);
    input.step = 0.001;
    switch (kinds & 3u) {
    case 0: break; /* a millisecond later */
    case 1: input.step = 0.0001 * (double)take_byte(from); break;
    case 2: input.step = -0.001 * (double)take_byte(from); break;
    default:
        take(from, &input.frame.time, sizeof input.frame.time);
        input.is_absolute = 1;
    }
    switch (kinds >> 2 & 3u) {
    case 0: input.frame.id = before->id; break;
    case 1: input.frame.id = 0x100u + 3u * (take_byte(from) % 8u); break; /* an ID of the profile */
    case 2: input.frame.id = 0x100u + take_byte(from); break;
    default: take(from, &input.frame.id, sizeof input.frame.id);
    }
    memcpy(input.frame.data, before->data, sizeof input.frame.data);
    switch (kinds >> 4 & 3u) {
    case 0: input.frame.data[0]++; break;
    case 1: memset(input.frame.data, take_byte(from), sizeof input.frame.data); break;
    case 2:
        byte = take_byte(from);
        input.frame.data[byte % 8u] = take_byte(from);
        break;
    default: take(from, input.frame.data, sizeof input.frame.data);
    }
    input.frame.length = (uint8_t)(kinds >> 6 & 1u ? take_byte(from) : 8u);
    return input;
}

/* Reads the frames of the input, at least one; returns their number. */
static uint32_t read_frames(reader *from, input_frame *frames)
{
    kdgat_frame before;
    uint32_t count = 0;
    memset(&before, 0, sizeof before);
    do {
        frames[count] = read_frame(from, &before);
        before = frames[count++].frame;
    } while (from->left > 0u && count < MOST_FRAMES);
    return count;
}

/* Frame number `at` of the input's frames again and again; `time` is that of the frame before. */
static kdgat_frame frame_at(const input_frame *frames, uint32_t count, uint32_t at, double *time)
{
    kdgat_frame frame = frames[at % count].frame;
    if (!frames[at % count].is_absolute) {
        frame.time = *time + frames[at % count].step;
    }
    *time = frame.time - frame.time == 0.0 ? frame.time : *time;
    return frame;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Judges the frames. What was loaded may have any numbers, so that scores are checked only if nothing was. */
static void push(const input_frame *frames, uint32_t count, int checks)
{
    const uint32_t number = larger(count, FEWEST_FRAMES);
    kdgat_result result;
    double time = 0.0;
    uint32_t at;

    for (at = 0; at < number; at++) {
        const kdgat_frame frame = frame_at(frames, count, at, &time);
        if (!kdgat_push(&state, &frame, &result)) {
            continue;
        }
        expect(result.attack <= 1 && result.calibrated <= 1 && result.num_nodes <= KDGAT_NAMED_NODES, "a result is out of range");
        expect(!checks || (result.score - result.score == 0.0 && result.deviations == result.deviations), "a score is no number");
    }
}

/* Saves the calibration, and checks that it is the same after a load. */
static void save_and_load(void)
{
    static uint8_t first[sizeof saved], second[sizeof saved];
    expect(kdgat_save(&state, first, sizeof first) == sizeof first, "a calibration is not saved");
    expect(kdgat_load(&state, first, sizeof first) == KDGAT_OK, "a saved calibration is refused");
    expect(kdgat_save(&state, second, sizeof second) == sizeof second && memcmp(first, second, sizeof first) == 0,
           "a saved calibration changes when it is loaded");
}

static void calibrate(const input_frame *frames, uint32_t count)
{
    const uint32_t number = larger(count, CALIBRATION_FRAMES);
    double time = 0.0;
    uint32_t at;

    kdgat_calibrate_begin(&state, &work);
    for (at = 0; at < number; at++) {
        const kdgat_frame frame = frame_at(frames, count, at, &time);
        (void)kdgat_calibrate_push(&state, &work, &frame);
    }
    if (kdgat_calibrate_end(&state, &work) == KDGAT_OK) {
        save_and_load();
    }
}

static uint32_t crc32(const uint8_t *bytes, uint32_t length)
{
    uint32_t crc = 0xffffffffu, i, bit;
    for (i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (bit = 0; bit < 8u; bit++) {
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

/* Loads the rest of the input as it is, and the saved calibration with the input's changes. */
static void load(reader *from)
{
    static uint8_t changed[sizeof saved];
    const uint32_t length = (uint32_t)sizeof saved;
    uint32_t crc, i, changes;

    expect(kdgat_load(&state, from->bytes, (uint32_t)from->left) != KDGAT_OK, "bytes without a checksum are loaded");
    memcpy(changed, saved, sizeof saved);
    for (changes = take_byte(from); changes > 0u && from->left > 0u; changes--) {
        uint8_t change[3];
        uint32_t place;
        take(from, change, sizeof change);
        place = ((uint32_t)change[0] << 8 | change[1]) % length;
        changed[place] = (uint8_t)(changed[place] ^ change[2]);
    }
    crc = crc32(changed, length - 4u);
    for (i = 0; i < 4u; i++) {
        changed[length - 4u + i] = (uint8_t)(crc >> (8u * i));
    }
    if (kdgat_load(&state, changed, length) == KDGAT_OK) {
        save_and_load();
    } else {
        expect(kdgat_save(&state, changed, length) == 0u, "a refused calibration is in use");
    }
}

/* A calibration from plain traffic, whose saved form the fuzzer changes. */
static void prepare(void)
{
    uint32_t at;
    kdgat_init(&state);
    kdgat_calibrate_begin(&state, &work);
    for (at = 0; at < KDGAT_STRIDE * 20u + KDGAT_WINDOW; at++) {
        kdgat_frame frame;
        memset(&frame, 0, sizeof frame);
        frame.time = 0.001 * (double)at;
        frame.id = 0x100u + 3u * (at * at % 7u);
        frame.length = 8;
        frame.data[at % 5u] = (uint8_t)at;
        (void)kdgat_calibrate_push(&state, &work, &frame);
    }
    expect(kdgat_calibrate_end(&state, &work) == KDGAT_OK, "plain traffic does not calibrate");
    expect(kdgat_save(&state, saved, sizeof saved) == sizeof saved, "a calibration is not saved");
    is_ready = 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static input_frame frames[MOST_FRAMES];
    reader from = {bytes, size};
    uint32_t count;
    uint8_t flags;

    if (!is_ready) {
        prepare();
    }
    if (size == 0) {
        return 0;
    }
    flags = take_byte(&from);
    kdgat_init(&state);
    kdgat_explain_all(&state, (flags & EXPLAINS) != 0u);
    if ((flags & LOADS) != 0u) {
        load(&from);
    }
    count = read_frames(&from, frames);
    push(frames, count, (flags & LOADS) == 0u);
    if ((flags & CALIBRATES) != 0u) {
        calibrate(frames, count);
        push(frames, count, (flags & LOADS) == 0u);
    }
    return 0;
}

#ifdef KDGAT_FUZZ_MAIN
int main(int count, char **paths)
{
    static uint8_t bytes[1u << 20];
    int at;
    for (at = 1; at < count; at++) {
        FILE *const file = fopen(paths[at], "rb");
        size_t size;
        if (file == NULL) {
            perror(paths[at]);
            return 1;
        }
        size = fread(bytes, 1, sizeof bytes, file);
        (void)fclose(file);
        (void)LLVMFuzzerTestOneInput(bytes, size);
    }
    return 0;
}
#endif
