/* Feeds the frames of a log to an exported detector. Reads lines of `candump -L` from standard input; prints for each window its score,
 * its verdict, and the ID that weighs most with its weight. */
#include <stdio.h>
#include <string.h>

#include "kdgat_car.h"

static kdgat_state detector;

int main(void)
{
    char line[256], data[128];
    kdgat_frame frame;
    kdgat_result result;
    unsigned id, byte;
    size_t index;

    kdgat_init(&detector);
    kdgat_explain_all(&detector, 1);
    while (fgets(line, sizeof line, stdin) != NULL) {
        memset(&frame, 0, sizeof frame);
        data[0] = '\0';
        if (sscanf(line, "(%lf) %*s %x#%127s", &frame.time, &id, data) < 2) {
            fprintf(stderr, "not a frame: %s", line);
            return 1;
        }
        frame.id = id;
        for (index = 0; index < 8 && sscanf(data + 2 * index, "%2x", &byte) == 1; index++) {
            frame.data[index] = (uint8_t)byte;
            frame.length = (uint8_t)(index + 1);
        }
        if (kdgat_push(&detector, &frame, &result)) {
            printf("%.17g %d %03X %.9g\n", result.score, result.attack, (unsigned)result.id[0], (double)result.weight[0]);
        }
    }
    return 0;
}
