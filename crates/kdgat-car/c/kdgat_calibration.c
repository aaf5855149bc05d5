/* Verdicts: the score of a window, its deviations on the car's scale, and the IDs that weigh most. */
#include "kdgat_calibration.h"

#include <math.h>

#include "kdgat_car.h"

#if KDGAT_MODEL == KDGAT_MODEL_VGAE

/* Added to each squared error before its logarithm. */
#define LEAST_ERROR 1e-9

double kdgat_profile_value(const float *error_means, uint32_t i)
{
    const double mean = (double)error_means[i];
    return i < KDGAT_NODE_COLUMNS ? mean : log(mean + LEAST_ERROR);
}

double kdgat_distance(const double *mean, const double *factor, const float *error_means)
{
    double solved[KDGAT_PROFILE_VALUES], sum = 0.0;
    uint32_t row, column;

    for (row = 0; row < KDGAT_PROFILE_VALUES; row++) {
        double known = 0.0;
        for (column = 0; column < row; column++) {
            known += *factor++ * solved[column];
        }
        solved[row] = (kdgat_profile_value(error_means, row) - mean[row] - known) / *factor++;
        sum += solved[row] * solved[row];
    }
    return sqrt(sum);
}

#endif

double kdgat_log_distance(double distance)
{
    /* The smallest normal number. */
    return log(distance > 2.2250738585072014e-308 ? distance : 2.2250738585072014e-308);
}

#if KDGAT_ID_LIST

/* Returns 1 if the ID is in the list in use: the car's own, or the model's vocabulary. */
static int is_known(const kdgat_calibration_state *car, const kdgat_graph *graph, uint32_t node)
{
    uint32_t low = 0, high = car->num_ids;
    if (!car->calibrated) {
        return graph->id_index[node] != 0u;
    }
    while (low < high) {
        const uint32_t middle = (low + high) / 2u;
        if (car->ids[middle] < graph->can_id[node]) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low < car->num_ids && car->ids[low] == graph->can_id[node];
}

/* Nodes with a frame in the window and an ID outside the list in use. */
static uint32_t count_foreign(const kdgat_calibration_state *car, const kdgat_graph *graph)
{
    uint32_t node, foreign = 0;
    for (node = 0; node < graph->num_nodes; node++) {
        foreign += graph->sends[node] && !is_known(car, graph, node) ? 1u : 0u;
    }
    return foreign;
}

#endif

/* The model's raw score, with the evidence of its own list of IDs. */
static float raw_score(const kdgat_graph *graph, float raw)
{
#if KDGAT_ID_LIST
    uint32_t node;
    for (node = 0; node < graph->num_nodes; node++) {
        if (graph->sends[node] && graph->id_index[node] == 0u) {
            return raw + KDGAT_FOREIGN_EVIDENCE;
        }
    }
#else
    (void)graph;
#endif
    return raw;
}

/* The window's value on the unbounded scale that the car's median and spread belong to. */
static double calibrated_value(const kdgat_state *state)
{
    const kdgat_calibration_state *const car = &state->calibration;
#if KDGAT_MODEL == KDGAT_MODEL_VGAE
    return kdgat_log_distance(kdgat_distance(car->mean, car->factor, state->output.error_means));
#elif KDGAT_ID_LIST
    return (double)state->output.raw + (count_foreign(car, &state->graph) > 0u ? car->evidence : 0.0);
#else
    (void)car;
    return (double)state->output.raw;
#endif
}

#if KDGAT_PAIR

/* The smallest normal number in single precision. */
#define LEAST_DIFFICULTY 1.17549435e-38f

/* Scores of the classifier and the autoencoder, each in spreads above what is usual in the training data. */
typedef struct {
    double classifier;
    double autoencoder;
} standardised_scores;

static standardised_scores standardise(const kdgat_state *state)
{
    const float difficulty = state->of_partner.raw > LEAST_DIFFICULTY ? state->of_partner.raw : LEAST_DIFFICULTY;
    standardised_scores scores;
    scores.classifier = ((double)raw_score(&state->graph, state->output.raw) - KDGAT_CLASSIFIER_MEDIAN) / KDGAT_CLASSIFIER_SPREAD;
    scores.autoencoder = (log((double)difficulty) - KDGAT_AUTOENCODER_MEDIAN) / KDGAT_AUTOENCODER_SPREAD;
    return scores;
}

int kdgat_partner_tells(const kdgat_state *state)
{
    const standardised_scores scores = standardise(state);
    return scores.autoencoder > scores.classifier;
}

#endif

void kdgat_judge(const kdgat_state *state, struct kdgat_result *result)
{
    const kdgat_calibration_state *const car = &state->calibration;
    const double raw = (double)raw_score(&state->graph, state->output.raw);
#if KDGAT_PAIR
    const standardised_scores scores = standardise(state);
#endif

    result->window = state->window.windows - 1u;
    result->first_frame = state->window.of_first_frame;
    result->time = state->window.of_time;
    result->score = KDGAT_MODEL == KDGAT_MODEL_GAT ? 1.0 / (1.0 + exp(-raw)) : raw;
#if KDGAT_PAIR
    result->classifier = result->score;
    result->autoencoder = (double)state->of_partner.raw;
    result->score = (scores.classifier + scores.autoencoder) / 2.0;
#endif
    result->calibrated = car->calibrated;
    if (car->calibrated) {
        result->deviations = (calibrated_value(state) - car->median) / car->spread;
        result->attack = result->deviations > car->threshold;
    } else {
        result->deviations = 0.0;
        result->attack = result->score > KDGAT_THRESHOLD;
    }
}

void kdgat_name_nodes(const kdgat_state *state, struct kdgat_result *result)
{
    const kdgat_graph *const graph = &state->graph;
    const float *by_node = state->output.by_node;
    uint32_t node, place;
#if KDGAT_PAIR
    const int of_partner = kdgat_partner_tells(state);
#else
    const int of_partner = 0;
#endif
#if KDGAT_ID_LIST
    const kdgat_calibration_state *const car = &state->calibration;
    const uint32_t foreign = count_foreign(car, graph);
    const float evidence = car->calibrated ? (float)car->evidence : KDGAT_FOREIGN_EVIDENCE;
    const float share = evidence / (float)(foreign > 0u ? foreign : 1u);
#endif

#if KDGAT_PAIR
    by_node = of_partner ? state->of_partner.by_node : by_node;
#elif !KDGAT_ID_LIST
    (void)of_partner;
#endif
    result->num_nodes = 0;
    for (node = 0; node < graph->num_nodes; node++) {
        float weight = by_node[node];
#if KDGAT_ID_LIST
        if (!of_partner && graph->sends[node] && !is_known(car, graph, node)) {
            weight += share;
        }
#endif
        if (result->num_nodes < KDGAT_NAMED_NODES) {
            place = result->num_nodes++;
        } else if (weight >= result->weight[KDGAT_NAMED_NODES - 1]) {
            place = KDGAT_NAMED_NODES - 1;
        } else {
            continue;
        }
        /* Of equal weights the later node comes first, as in the trainer. */
        for (; place > 0u && result->weight[place - 1u] <= weight; place--) {
            result->weight[place] = result->weight[place - 1u];
            result->id[place] = result->id[place - 1u];
        }
        result->weight[place] = weight;
        result->id[place] = graph->can_id[node];
    }
}
