/* The detector: windows, model, verdict. */
#include "kdgat_car.h"

#include <string.h>

void kdgat_init(kdgat_state *state)
{
    memset(state, 0, sizeof *state);
}

void kdgat_explain_all(kdgat_state *state, int on)
{
    state->explains_all = (uint8_t)(on != 0);
}

int kdgat_push(kdgat_state *state, const kdgat_frame *frame, kdgat_result *result)
{
    if (!kdgat_window_push(state, frame)) {
        return 0;
    }
    kdgat_model_score(&state->graph, &state->scratch, &state->output);
    memset(result, 0, sizeof *result);
    kdgat_judge(state, result);
    if (KDGAT_MODEL == KDGAT_MODEL_VGAE || result->attack || state->explains_all) {
        kdgat_model_explain(&state->graph, &state->scratch, &state->output);
        kdgat_name_nodes(state, result);
    }
    return 1;
}
