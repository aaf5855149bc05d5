/* Fuzz target for an exported detector, for libFuzzer: the first byte selects what the others are.
 *
 *   even  frames for kdgat_push: time (8 bytes, any bits), ID (4), length (1), payload (8)
 *   odd   a saved calibration for kdgat_load: its bits are changed by the others, and the checksum is made to fit
 *
 * With -DKDGAT_FUZZ_MAIN, a program that feeds the files of its command line to the target. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kdgat_calibrate.h"

#define FRAME 21u

static kdgat_state state;
static kdgat_calibration work;
static uint8_t saved[KDGAT_SAVED_BYTES];
static int is_ready;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static kdgat_frame frame_of(const uint8_t *bytes)
{
    kdgat_frame frame;
    memcpy(&frame.time, bytes, sizeof frame.time);
    memcpy(&frame.id, bytes + 8, sizeof frame.id);
    frame.length = bytes[12];
    memcpy(frame.data, bytes + 13, sizeof frame.data);
    return frame;
}

static void expect(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void expect_result(const kdgat_result *result)
{
    expect(result->score - result->score == 0.0 && result->deviations == result->deviations, "a score is no number");
    expect(result->attack <= 1 && result->calibrated <= 1 && result->num_nodes <= KDGAT_NAMED_NODES, "a result is out of range");
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
        frame.id = 0x100u + at * at % 7u;
        frame.length = 8;
        frame.data[at % 5u] = (uint8_t)at;
        (void)kdgat_calibrate_push(&state, &work, &frame);
    }
    expect(kdgat_calibrate_end(&state, &work) == KDGAT_OK, "plain traffic does not calibrate");
    expect(kdgat_save(&state, saved, sizeof saved) == sizeof saved, "a calibration is not saved");
    is_ready = 1;
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

static void load(const uint8_t *bytes, size_t size)
{
    static uint8_t changed[sizeof saved];
    const uint32_t length = (uint32_t)sizeof saved;
    uint32_t crc, i;
    size_t at;

    (void)kdgat_load(&state, bytes, (uint32_t)size);
    memcpy(changed, saved, sizeof saved);
    /* Three bytes each: a place and the bits to change there. */
    for (at = 0; at + 3u <= size; at += 3u) {
        const uint32_t place = ((uint32_t)bytes[at] << 8 | bytes[at + 1u]) % length;
        changed[place] = (uint8_t)(changed[place] ^ bytes[at + 2u]);
    }
    crc = crc32(changed, length - 4u);
    for (i = 0; i < 4u; i++) {
        changed[length - 4u + i] = (uint8_t)(crc >> (8u * i));
    }
    (void)kdgat_load(&state, changed, length);
}

/* Frame number `at` of the input, which is repeated so that short inputs complete windows. */
static kdgat_frame frame_at(const uint8_t *bytes, size_t size, size_t at)
{
    return frame_of(bytes + FRAME * (at % (size / FRAME)));
}

static void push(const uint8_t *bytes, size_t size)
{
    kdgat_frame frame;
    kdgat_result result;
    size_t at;

    if (size < FRAME) {
        return;
    }
    for (at = 0; at < 3u * KDGAT_STRIDE + KDGAT_WINDOW; at++) {
        frame = frame_at(bytes, size, at);
        if (kdgat_push(&state, &frame, &result)) {
            expect_result(&result);
        }
    }
    kdgat_calibrate_begin(&state, &work);
    for (at = 0; at < 11u * KDGAT_STRIDE + KDGAT_WINDOW; at++) {
        frame = frame_at(bytes, size, at);
        (void)kdgat_calibrate_push(&state, &work, &frame);
    }
    (void)kdgat_calibrate_end(&state, &work);
    for (at = 0; at < 2u * KDGAT_STRIDE + KDGAT_WINDOW; at++) {
        frame = frame_at(bytes, size, at);
        if (kdgat_push(&state, &frame, &result)) {
            expect_result(&result);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    kdgat_frame frame;
    kdgat_result result;
    uint32_t at;

    if (!is_ready) {
        prepare();
    }
    if (size == 0) {
        return 0;
    }
    kdgat_init(&state);
    kdgat_explain_all(&state, 1);
    if (bytes[0] % 2u == 0u) {
        push(bytes + 1, size - 1u);
        return 0;
    }
    load(bytes + 1, size - 1u);
    memset(&frame, 0, sizeof frame);
    for (at = 0; at < KDGAT_WINDOW + 1u; at++) {
        frame.time += 0.001;
        frame.id = at % 9u;
        /* Whatever was loaded, nothing outside the state is touched; its numbers may be extreme, so scores are not checked. */
        (void)kdgat_push(&state, &frame, &result);
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
