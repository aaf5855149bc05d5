/* The detector: windows, model, verdict. */
#include "kdgat_car.h"

#include <math.h>
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

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

static int is_gone(const kdgat_result *result, uint32_t id)
{
    uint32_t at;
    for (at = 0; at < result->num_gone; at++) {
        if (result->gone[at] == id) {
            return 1;
        }
    }
    return 0;
}

/* Names the IDs that are gone, then those that differ most from the profile. */
static void name_culprits(const kdgat_graph *graph, kdgat_result *result)
{
    uint32_t node;
    for (node = 0; node < result->num_gone; node++) {
        result->culprit[node] = result->gone[node];
        result->surprise[node] = INFINITY;
    }
    result->num_culprits = result->num_gone;
    for (node = 0; node < graph->num_nodes; node++) {
        const float surprise = graph->surprise[node];
        uint32_t place = result->num_culprits;
        if (!(surprise > 0.0f) || is_gone(result, graph->can_id[node])) {
            continue;
        }
        if (place == KDGAT_NAMED_NODES) {
            place = KDGAT_NAMED_NODES - 1u;
            if (surprise <= result->surprise[place]) {
                continue;
            }
        } else {
            result->num_culprits++;
        }
        /* Of equal surprises the lower ID comes first, as in the trainer. */
        for (; place > 0u && result->surprise[place - 1u] < surprise; place--) {
            result->surprise[place] = result->surprise[place - 1u];
            result->culprit[place] = result->culprit[place - 1u];
        }
        result->surprise[place] = surprise;
        result->culprit[place] = graph->can_id[node];
    }
}

#endif

void kdgat_forget_gone(kdgat_state *state)
{
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    memset(&state->gone, 0, sizeof state->gone);
#else
    (void)state;
#endif
}

int kdgat_push(kdgat_state *state, const kdgat_frame *frame, kdgat_result *result)
{
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    kdgat_profile profile;
#endif
    if (!kdgat_window_push(state, frame)) {
        return 0;
    }
    kdgat_score(state);
    memset(result, 0, sizeof *result);
    kdgat_judge(state, result);
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    profile = kdgat_profile_of(&state->calibration);
    kdgat_find_gone(&state->gone, &profile, &state->graph, state->window.of_time, result);
    result->attack = (uint8_t)(result->attack || result->num_gone > 0u);
#endif
    name_nodes(state, result);
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    name_culprits(&state->graph, result);
#endif
    return 1;
}
