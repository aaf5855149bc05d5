/* Prints the graphs that an exported detector makes of frames from standard input: a line with the number of the first frame, a line for
 * each node (ID, row of the vocabulary, whether it sends, continuous features, profile set: surprise) and a line for each edge (source, target, features if the
 * model reads them). A frame is its time (double), ID (4 bytes), length and 8 bytes of payload. */
#include <stdio.h>

#include "kdgat_car.h"

static kdgat_state state;

int main(void)
{
    kdgat_frame frame;
    uint32_t i, k;

    kdgat_init(&state);
    while (fread(&frame.time, sizeof frame.time, 1, stdin) == 1) {
        if (fread(&frame.id, sizeof frame.id, 1, stdin) != 1 || fread(&frame.length, 1, 1, stdin) != 1
            || fread(frame.data, sizeof frame.data, 1, stdin) != 1) {
            fprintf(stderr, "the frame is cut short\n");
            return 1;
        }
        if (!kdgat_window_push(&state, &frame)) {
            continue;
        }
        printf("window %lu\n", (unsigned long)state.window.of_first_frame);
        for (i = 0; i < state.graph.num_nodes; i++) {
            printf("%lu %u %u", (unsigned long)state.graph.can_id[i], state.graph.id_index[i], state.graph.sends[i]);
            for (k = 0; k < KDGAT_NODE_COLUMNS; k++) {
                printf(" %.9g", (double)state.graph.continuous[i][k]);
            }
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
            printf(" %.9g", (double)state.graph.surprise[i]);
#endif
            printf("\n");
        }
        for (i = 0; i < state.graph.num_edges; i++) {
            printf("%u %u", state.graph.source[i], state.graph.target[i]);
#if KDGAT_EDGE_COLUMNS > 0
            for (k = 0; k < KDGAT_EDGE_COLUMNS; k++) {
                printf(" %.9g", (double)state.graph.edge_attributes[i][k]);
            }
#endif
            printf("\n");
        }
    }
    return 0;
}
