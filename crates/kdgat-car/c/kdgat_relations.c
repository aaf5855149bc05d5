/* Relations between signals of different IDs: what one control unit reports about the car follows from what others report. A window's
 * mean of a signal is compared with the mean that follows from a signal of another ID; what that one does since its frame before the window
 * counts as error. */
#include "kdgat_car.h"

#include <math.h>

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE

#if KDGAT_RELATIONS > 0

/* A signal of one byte has no high one. */
#define NO_BYTE 0xffu

/* The frames of a node, in order of time. */
typedef struct {
    const kdgat_frame *frames;
    const uint16_t *positions;
    uint32_t number;
} of_node;

static double value_of(const uint8_t *data, const uint8_t place[2])
{
    const double low = (double)data[place[1]];
    return place[0] == NO_BYTE ? low : 256.0 * (double)data[place[0]] + low;
}

/* Mean of a signal over the window. */
static double mean_of(const of_node *node, const uint8_t place[2])
{
    /* A sum of integers is exact. */
    double sum = 0.0;
    uint32_t i;

    for (i = 0; i < node->number; i++) {
        sum += value_of(node->frames[node->positions[i]].data, place);
    }
    return sum / (double)node->number;
}

/* Largest value of a signal less the smallest, in the window and in the frame before it. */
static double spread_of(const kdgat_window_state *window, const of_node *node, const uint8_t place[2])
{
    const kdgat_fact *const fact = &window->history.facts[node->positions[0]];
    double least = INFINITY, most = -INFINITY;
    uint32_t i;

    if (fact->has_previous) {
        least = most = value_of(fact->previous, place);
    }
    for (i = 0; i < node->number; i++) {
        const double value = value_of(node->frames[node->positions[i]].data, place);
        least = fmin(least, value);
        most = fmax(most, value);
    }
    return most - least;
}

/* The frames of a node. */
static of_node frames_of(const kdgat_window_state *window, uint32_t node)
{
    const kdgat_order *const order = &window->order;
    const uint32_t first = order->first[node];
    const of_node frames = {window->frames, &order->by_source[first], (uint32_t)order->first[node + 1u] - first};
    return frames;
}

/* The frames of an ID; none if the window has no frame of it. */
static of_node frames_of_id(const kdgat_window_state *window, const kdgat_graph *graph, uint32_t id)
{
    const uint32_t node = kdgat_place_of(graph, id);
    const of_node none = {window->frames, window->order.by_source, 0u};
    return node < graph->num_nodes && graph->can_id[node] == id ? frames_of(window, node) : none;
}

/* A value in a range or at most its width outside. Beyond that, a bit has changed that never did in training. */
static int covers(float least, float most, double value)
{
    const double width = (double)most - (double)least;
    return value >= (double)least - width && value <= (double)most + width;
}

/* Smallest residual of a relation under any partner that the window has, in units of what is usual; negative without one. */
static double disagreement(const kdgat_window_state *window, const kdgat_graph *graph, const kdgat_relation *relation,
                           const of_node *own)
{
    const double found = mean_of(own, relation->place);
    double least = -1.0;
    uint32_t i;

    for (i = 0; i < relation->num_partners; i++) {
        const kdgat_partner *const partner = &kdgat_partners[relation->first_partner + i];
        const of_node other = frames_of_id(window, graph, partner->id);
        const double slope = (double)partner->slope, error = (double)partner->error;
        double by, spread, residual;
        if (other.number == 0u) {
            continue;
        }
        by = mean_of(&other, partner->place);
        if (!covers(relation->least, relation->most, found) || !covers(partner->least, partner->most, by)) {
            continue;
        }
        spread = slope * spread_of(window, &other, partner->place);
        residual = fabs(found - (slope * by + (double)partner->offset)) / sqrt(error * error + spread * spread);
        least = least < 0.0 || residual < least ? residual : least;
    }
    return least < 0.0 ? least : least / (double)relation->usual;
}

float kdgat_disagreement(const kdgat_window_state *window, const kdgat_graph *graph, uint32_t node)
{
    const uint32_t id = graph->can_id[node];
    const of_node own = frames_of(window, node);
    float most = -1.0f;
    uint32_t low = 0, high = KDGAT_RELATIONS;

    /* The first relation of the ID. */
    while (low < high) {
        const uint32_t middle = (low + high) / 2u;
        if (kdgat_relations[middle].id < id) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    for (; own.number > 0u && low < KDGAT_RELATIONS && kdgat_relations[low].id == id; low++) {
        const float found = (float)disagreement(window, graph, &kdgat_relations[low], &own);
        most = found > most ? found : most;
    }
    return most;
}

#else

float kdgat_disagreement(const kdgat_window_state *window, const kdgat_graph *graph, uint32_t node)
{
    (void)window;
    (void)graph;
    (void)node;
    return -1.0f;
}

#endif

#endif
