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

void kdgat_score(kdgat_state *state)
{
#if KDGAT_PAIR
    /* First, because kdgat_model_explain reads the intermediate values of the classifier. */
    kdgat_partner_score(&state->graph, &state->scratch, &state->of_partner);
#endif
    kdgat_model_score(&state->graph, &state->scratch, &state->output);
}

/* Names the IDs that weigh most, if that costs nothing or the window deserves it. */
static void name_nodes(kdgat_state *state, kdgat_result *result)
{
    int is_free = KDGAT_MODEL == KDGAT_MODEL_VGAE;
#if KDGAT_PAIR
    is_free = kdgat_partner_tells(state);
#endif
    if (!is_free && (result->attack || state->explains_all)) {
        kdgat_model_explain(&state->graph, &state->scratch, &state->output);
        is_free = 1;
    }
    if (is_free) {
        kdgat_name_nodes(state, result);
    }
}

int kdgat_push(kdgat_state *state, const kdgat_frame *frame, kdgat_result *result)
{
    if (!kdgat_window_push(state, frame)) {
        return 0;
    }
    kdgat_score(state);
    memset(result, 0, sizeof *result);
    kdgat_judge(state, result);
    name_nodes(state, result);
    return 1;
}
