/* Measures an exported detector on a recording: reads lines of `candump -L` from standard input, then judges all their windows again and
 * again. Prints the number of windows, the mean number of nodes, and for each of 9 rounds the microseconds of processor time a window,
 * without and with the IDs that weigh most. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "kdgat_car.h"

#define MOST_FRAMES 1000000u
#define ROUNDS 9

static kdgat_frame frames[MOST_FRAMES];
static kdgat_state detector;

/* Reads a frame; returns 0 at the end of the log or at a line that is none. */
static int next_frame(kdgat_frame *frame)
{
    char line[256], data[128];
    unsigned id, byte;
    size_t index;

    data[0] = '\0';
    if (fgets(line, sizeof line, stdin) == NULL || sscanf(line, "(%lf) %*s %x#%127s", &frame->time, &id, data) < 2) {
        return 0;
    }
    frame->id = id;
    for (index = 0; index < 8 && sscanf(data + 2 * index, "%2x", &byte) == 1; index++) {
        frame->data[index] = (uint8_t)byte;
        frame->length = (uint8_t)(index + 1);
    }
    return 1;
}

/* Microseconds a window; sets the number of windows and of their nodes. */
static double measure(size_t count, int explain, unsigned long *windows, unsigned long *nodes)
{
    const clock_t begin = clock();
    size_t frame;

    *windows = 0;
    *nodes = 0;
    kdgat_init(&detector);
    for (frame = 0; frame < count; frame++) {
        /* kdgat_push would explain alarms in both cases. */
        if (kdgat_window_push(&detector, &frames[frame])) {
            kdgat_score(&detector);
            if (explain) {
                kdgat_model_explain(&detector.graph, &detector.scratch, &detector.output);
            }
            *windows += 1u;
            *nodes += detector.graph.num_nodes;
        }
    }
    return 1e6 * (double)(clock() - begin) / (double)CLOCKS_PER_SEC / (double)(*windows > 0u ? *windows : 1u);
}

int main(void)
{
    unsigned long windows, nodes;
    size_t count = 0;
    int round;

    while (count < MOST_FRAMES && next_frame(&frames[count])) {
        count++;
    }
    (void)measure(count, 0, &windows, &nodes);
    printf("%lu %.1f\n", windows, (double)nodes / (double)(windows > 0u ? windows : 1u));
    for (round = 0; round < ROUNDS; round++) {
        const double without = measure(count, 0, &windows, &nodes);
        printf("%.2f %.2f\n", without, measure(count, 1, &windows, &nodes));
    }
    return 0;
}
