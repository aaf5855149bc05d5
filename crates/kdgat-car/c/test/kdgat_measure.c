/* Measures the detector on the frames of kdgat_vectors.h: prints a name and a number a line. Sizes are in bytes; times are microseconds of
 * processor time a window, frames and features included, without and with the IDs that weigh most. */
#include <stdio.h>
#include <time.h>

#include "kdgat_car.h"
#if !KDGAT_PAIR
#include "kdgat_calibrate.h"
#endif

typedef struct {
    double score;
    uint8_t attack;
    float weight;
} expected_result;

#include "kdgat_vectors.h"

#define FRAMES (sizeof(vectors) / sizeof((vectors)[0]))
#define WINDOWS (sizeof(expected) / sizeof((expected)[0]))
/* Processor time of a measurement, in seconds. */
#define LEAST_SECONDS 0.5

static kdgat_state detector;

/* Seconds of processor time. */
static double now(void)
{
    return (double)clock() / (double)CLOCKS_PER_SEC;
}

/* Microseconds a window. */
static double measure(int explain)
{
    unsigned long windows = 0;
    size_t frame;
    const double begin = now();
    double seconds;

    do {
        kdgat_init(&detector);
        for (frame = 0; frame < FRAMES; frame++) {
            /* kdgat_push would explain alarms in both cases. */
            if (kdgat_window_push(&detector, &vectors[frame])) {
                kdgat_score(&detector);
                if (explain) {
                    kdgat_model_explain(&detector.graph, &detector.scratch, &detector.output);
                }
                windows++;
            }
        }
        seconds = now() - begin;
    } while (seconds < LEAST_SECONDS && windows > 0u);
    return windows == 0u ? 0.0 : 1e6 * seconds / (double)windows;
}

int main(void)
{
    kdgat_result result;
    unsigned long nodes = 0, most = 0;
    size_t frame;

    kdgat_init(&detector);
    for (frame = 0; frame < FRAMES; frame++) {
        if (kdgat_push(&detector, &vectors[frame], &result)) {
            nodes += detector.graph.num_nodes;
            most = detector.graph.num_nodes > most ? detector.graph.num_nodes : most;
        }
    }
    printf("state %lu\n", (unsigned long)sizeof(kdgat_state));
#if !KDGAT_PAIR
    printf("calibration %lu\n", (unsigned long)sizeof(kdgat_calibration));
    printf("saved %lu\n", (unsigned long)KDGAT_SAVED_BYTES);
#endif
    printf("mean_nodes %.1f\n", (double)nodes / (double)WINDOWS);
    printf("most_nodes %lu\n", most);
    printf("microseconds %.2f\n", measure(0));
    printf("microseconds_explained %.2f\n", measure(1));
    return 0;
}
