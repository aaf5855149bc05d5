/* Compares the detector with the trainer: frames of kdgat_vectors.h, and the results that the trainer computed for them. Prints one
 * line and returns 0 if all agree: scores to 1e-5 (relative), verdicts exactly. */
#include <math.h>
#include <stdio.h>

#include "kdgat_car.h"

typedef struct {
    double score;
    uint8_t attack;
    float weight; /* of the ID that weighs most */
} expected_result;

#include "kdgat_vectors.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static kdgat_state detector;

int main(void)
{
    kdgat_result result;
    size_t frame, windows = 0, wrong = 0;
    double largest = 0.0;

    kdgat_init(&detector);
    kdgat_explain_all(&detector, 1);
    for (frame = 0; frame < COUNT(vectors); frame++) {
        if (!kdgat_push(&detector, &vectors[frame], &result)) {
            continue;
        }
        if (windows < COUNT(expected)) {
            const expected_result *const want = &expected[windows];
#if KDGAT_PAIR
            /* The mean of two standardised scores may be 0, and small spreads magnify the rounding of log odds and log difficulties, which
             * single precision holds to about a millionth. */
            const double scale = 1.0 + fabs(want->score) + 0.05 / KDGAT_CLASSIFIER_SPREAD + 0.05 / KDGAT_AUTOENCODER_SPREAD;
#else
            const double scale = fmax(fabs(want->score), 1e-300);
#endif
            const double difference = fabs(result.score - want->score) / scale;
            const double of_weight = fabs((double)result.weight[0] - (double)want->weight) / (1.0 + fabs((double)want->weight));
            largest = fmax(largest, difference);
            if (!(difference <= 1e-5) || !(of_weight <= 1e-4) || result.attack != want->attack) {
                printf("window %u: score %.9g, weight %.6g, attack %d; expected %.9g, %.6g, %d\n", (unsigned)windows, result.score,
                       (double)result.weight[0], result.attack, want->score, (double)want->weight, want->attack);
                wrong++;
            }
        }
        windows++;
    }
    if (windows != COUNT(expected)) {
        printf("%u windows, expected %u\n", (unsigned)windows, (unsigned)COUNT(expected));
        return 1;
    }
    printf("%u windows, %u wrong, largest relative difference of a score %.2g; state %lu bytes\n", (unsigned)windows, (unsigned)wrong,
           largest, (unsigned long)sizeof detector);
    return wrong > 0u ? 1 : 0;
}
