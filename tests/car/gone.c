/* Prints the windows in which an exported detector calls IDs gone, for frames from standard input (in the format of windows.c): number of the window,
 * IDs, and the culprits. */
#include <stdio.h>

#include "kdgat_car.h"

static kdgat_state state;

int main(void)
{
    kdgat_frame frame;
    kdgat_result result;
    uint32_t i;

    kdgat_init(&state);
    while (fread(&frame.time, sizeof frame.time, 1, stdin) == 1) {
        if (fread(&frame.id, sizeof frame.id, 1, stdin) != 1 || fread(&frame.length, 1, 1, stdin) != 1
            || fread(frame.data, sizeof frame.data, 1, stdin) != 1) {
            fprintf(stderr, "the frame is cut short\n");
            return 1;
        }
        if (!kdgat_push(&state, &frame, &result) || result.num_gone == 0u) {
            continue;
        }
        printf("%lu %u", (unsigned long)result.window, result.attack);
        for (i = 0; i < result.num_gone; i++) {
            printf(" %lu", (unsigned long)result.gone[i]);
        }
        printf(" :");
        for (i = 0; i < result.num_culprits; i++) {
            printf(" %lu", (unsigned long)result.culprit[i]);
        }
        printf("\n");
    }
    return 0;
}
