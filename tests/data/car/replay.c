/* Feeds the frames of a log to an exported detector. Reads lines of `candump -L` from standard input; prints for each window its score,
 * its verdict, the ID that weighs most with its weight, and its deviations.
 *
 *   replay                            without a calibration
 *   replay --calibrate LOG --save TO  calibrates on another log first, saves the calibration and loads it again
 *   replay --load FROM                with a saved calibration
 *   replay --scores                   scores and verdicts alone, which is faster
 *
 * The exit code is 1 for input that is no log, or 10 and the kdgat_status of a calibration that failed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kdgat_car.h"
/* Two models together have no calibration in C. */
#if !KDGAT_PAIR
#include "kdgat_calibrate.h"
#endif

static kdgat_state detector;

/* Reads a frame; returns 0 at the end of the log. */
static int next_frame(FILE *log, kdgat_frame *frame)
{
    char line[256], data[128];
    unsigned id, byte;
    size_t index;

    if (fgets(line, sizeof line, log) == NULL) {
        return 0;
    }
    memset(frame, 0, sizeof *frame);
    data[0] = '\0';
    if (sscanf(line, "(%lf) %*s %x#%127s", &frame->time, &id, data) < 2) {
        fprintf(stderr, "not a frame: %s", line);
        exit(1);
    }
    frame->id = id;
    for (index = 0; index < 8 && sscanf(data + 2 * index, "%2x", &byte) == 1; index++) {
        frame->data[index] = (uint8_t)byte;
        frame->length = (uint8_t)(index + 1);
    }
    return 1;
}

#if !KDGAT_PAIR

static kdgat_state other;
static kdgat_calibration work;
static uint8_t bytes[KDGAT_SAVED_BYTES];

static FILE *opened(const char *path, const char *mode)
{
    FILE *const file = fopen(path, mode);
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    return file;
}

static void expect(kdgat_status status, const char *what)
{
    if (status != KDGAT_OK) {
        fprintf(stderr, "%s: status %d\n", what, (int)status);
        exit(10 + (int)status);
    }
}

/* Calibrates, saves, and checks that a saved calibration with a changed bit is refused and leaves the one in
 * use. */
static void calibrate(const char *path, const char *to)
{
    FILE *const log = opened(path, "r"), *file;
    kdgat_frame frame;
    size_t bit;

    kdgat_calibrate_begin(&detector, &work);
    while (next_frame(log, &frame)) {
        (void)kdgat_calibrate_push(&detector, &work, &frame);
    }
    (void)fclose(log);
    expect(kdgat_calibrate_end(&detector, &work), path);
    if (kdgat_save(&detector, bytes, sizeof bytes - 1) != 0 || kdgat_save(&detector, bytes, sizeof bytes) != sizeof bytes) {
        fprintf(stderr, "cannot save\n");
        exit(1);
    }
    other = detector;
    for (bit = 0; bit < 8 * sizeof bytes; bit += 1 + sizeof bytes * sizeof bytes / 1000000) {
        bytes[bit / 8] = (uint8_t)(bytes[bit / 8] ^ 1u << bit % 8);
        if (kdgat_load(&other, bytes, sizeof bytes) == KDGAT_OK || memcmp(&other, &detector, sizeof other) != 0) {
            fprintf(stderr, "a calibration with a change of bit %lu was loaded\n", (unsigned long)bit);
            exit(1);
        }
        bytes[bit / 8] = (uint8_t)(bytes[bit / 8] ^ 1u << bit % 8);
    }
    file = opened(to, "wb");
    if (fwrite(bytes, sizeof bytes, 1, file) != 1 || fclose(file) != 0) {
        perror(to);
        exit(1);
    }
    printf("%.17g %u\n", detector.calibration.threshold, (unsigned)work.windows);
    kdgat_calibrate_none(&detector);
    expect(kdgat_load(&detector, bytes, sizeof bytes), "load");
}

static void load(const char *path)
{
    FILE *const file = opened(path, "rb");
    /* One byte more than there should be, so that a longer file is noticed. */
    static uint8_t read[KDGAT_SAVED_BYTES + 1u];
    const size_t length = fread(read, 1, sizeof read, file);
    (void)fclose(file);
    expect(kdgat_load(&detector, read, (uint32_t)length), path);
}

#endif

/* Prints the scores and verdicts of the log. */
static int print_scores(void)
{
    kdgat_frame frame;
    kdgat_result result;
    while (next_frame(stdin, &frame)) {
        if (kdgat_window_push(&detector, &frame)) {
            kdgat_score(&detector);
            kdgat_judge(&detector, &result);
            printf("%.17g %d\n", result.score, result.attack);
        }
    }
    return 0;
}

int main(int count, char **arguments)
{
    kdgat_frame frame;
    kdgat_result result;

    kdgat_init(&detector);
    kdgat_explain_all(&detector, 1);
#if !KDGAT_PAIR
    if (count == 5 && strcmp(arguments[1], "--calibrate") == 0) {
        calibrate(arguments[2], arguments[4]);
    } else if (count == 3) {
        load(arguments[2]);
    }
#endif
    if (count == 2) {
        return print_scores();
    }
    (void)arguments;
    while (next_frame(stdin, &frame)) {
        if (kdgat_push(&detector, &frame, &result)) {
            printf("%.17g %d %03X %.9g %.17g\n", result.score, result.attack, (unsigned)result.id[0], (double)result.weight[0],
                   result.deviations);
        }
    }
    return 0;
}
