/* Calibrates an exported detector of the profile set with frames from standard input (in the format of windows.c), and prints the learned
 * profile: a line with its surprise, then a line for each ID. A frame with the ID 0xffffffff begins another log. */
#include <stdio.h>

#include "kdgat_calibrate.h"

static kdgat_state state;
static kdgat_calibration work;

int main(void)
{
    kdgat_frame frame;
    kdgat_status status;
    uint32_t i, byte, k;

    kdgat_init(&state);
    kdgat_calibrate_begin(&state, &work);
    while (fread(&frame.time, sizeof frame.time, 1, stdin) == 1) {
        if (fread(&frame.id, sizeof frame.id, 1, stdin) != 1 || fread(&frame.length, 1, 1, stdin) != 1
            || fread(frame.data, sizeof frame.data, 1, stdin) != 1) {
            fprintf(stderr, "the frame is cut short\n");
            return 1;
        }
        if (frame.id == 0xffffffffu) {
            kdgat_calibrate_next_log(&state, &work);
        } else {
            (void)kdgat_calibrate_push(&state, &work, &frame);
        }
    }
    status = kdgat_calibrate_end(&state, &work);
    if (status != KDGAT_OK) {
        fprintf(stderr, "status %d\n", (int)status);
        return 1;
    }
    printf("%.9g\n", (double)state.calibration.new_id_surprise);
    for (i = 0; i < state.calibration.num_usual; i++) {
        const kdgat_usual *const usual = &state.calibration.usual[i];
        printf("%lu %.9g %.9g %.9g %.9g %.9g %.9g %.9g %.9g %.9g %.9g %.9g", (unsigned long)usual->id, (double)usual->gaps, (double)usual->gap_low,
               (double)usual->gap_median, (double)usual->gap_mean, (double)usual->gap_high, (double)usual->watched,
               (double)usual->longest_silence, (double)kdgat_gone_seconds(usual), (double)usual->repeats, (double)usual->returns, (double)usual->changed_bytes);
        for (byte = 0; byte < KDGAT_PROFILE_BYTES; byte++) {
            printf(" %u %u %u", usual->change_high[byte], usual->change_most[byte], usual->repeating >> byte & 1u);
            for (k = 0; k < 32; k++) {
                printf(" %u", usual->seen[byte][k]);
            }
        }
        printf(" %u\n", usual->longest_standstill);
    }
    return 0;
}
