/* Classic features of nodes, and the edge features of all sets but the rich one.
 *
 * Node: mean of each payload byte / 255; number of frames, scaled to 0 to 1 over the window's nodes; position of the last frame
 * / (window - 1). A node without frames has zeros. */
#include "kdgat_car.h"

#include <math.h>
#include <string.h>

#if KDGAT_FEATURES != KDGAT_FEATURES_RICH

#if KDGAT_EDGE_COLUMNS > 0

/* Mean, population standard deviation and regularity of the gaps between ascending positions. Integers up to the last step, so that
 * equal gaps have a deviation of exactly 0. */
static void gap_statistics(const uint16_t *positions, uint32_t number, double statistics[3])
{
    uint64_t squares = 0, sum, gaps;
    uint32_t i;

    if (number < 2u) {
        statistics[0] = statistics[1] = statistics[2] = 0.0;
        return;
    }
    gaps = number - 1u;
    sum = (uint64_t)positions[number - 1u] - positions[0];
    for (i = 1; i < number; i++) {
        const uint64_t gap = (uint64_t)positions[i] - positions[i - 1u];
        squares += gap * gap;
    }
    statistics[0] = (double)sum / (double)gaps;
    statistics[1] = sqrt((double)(gaps * squares - sum * sum)) / (double)gaps;
    statistics[2] = 1.0 / (1.0 + statistics[1]);
}

/* Occurrences of a node as source and as target. */
static double degree(const kdgat_order *order, uint32_t node)
{
    const int frames = order->first[node + 1u] - order->first[node];
    return (double)(frames + order->first_as_target[node + 1u] - order->first_as_target[node]);
}

static void edge_features(const kdgat_order *order, kdgat_graph *graph)
{
    uint16_t next = 0;
    uint32_t edge, number;

    for (edge = 0; edge < graph->num_edges; edge++) {
        const uint16_t source = graph->source[edge], target = graph->target[edge];
        const uint16_t *const positions = kdgat_occurrences(order, &next, &number);
        const double window = (double)KDGAT_WINDOW, first = (double)positions[0], last = (double)positions[number - 1u];
        const double of_source = degree(order, source), of_target = degree(order, target);
        float *const features = graph->edge_attributes[edge];
        double gaps[3];

        gap_statistics(positions, number, gaps);
        features[0] = (float)number;
        features[1] = (float)((double)number / window);
        features[2] = (float)gaps[0];
        features[3] = (float)gaps[1];
        features[4] = (float)gaps[2];
        features[5] = (float)(first / window);
        features[6] = (float)(last / window);
        features[7] = (float)((last - first) / window);
        features[8] = kdgat_has_edge(graph, order, target, source) ? 1.0f : 0.0f;
        features[9] = (float)(of_source * of_target);
        features[10] = (float)(of_source / of_target);
    }
}

#endif

#if KDGAT_FEATURES == KDGAT_FEATURES_CLASSIC

static void node_features(const kdgat_frame *frames, const kdgat_order *order, kdgat_graph *graph)
{
    uint32_t node, byte, at, fewest = KDGAT_WINDOW, most = 0;

    for (node = 0; node < graph->num_nodes; node++) {
        const uint32_t number = (uint32_t)order->first[node + 1u] - order->first[node];
        fewest = number < fewest ? number : fewest;
        most = number > most ? number : most;
    }
    for (node = 0; node < graph->num_nodes; node++) {
        const uint32_t begin = order->first[node], end = order->first[node + 1u], number = end - begin;
        float *const features = graph->continuous[node];
        uint32_t sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};

        memset(features, 0, sizeof graph->continuous[node]);
        if (number == 0u) {
            continue;
        }
        for (at = begin; at < end; at++) {
            for (byte = 0; byte < 8u; byte++) {
                sums[byte] += frames[order->by_source[at]].data[byte];
            }
        }
        for (byte = 0; byte < 8u; byte++) {
            features[byte] = (float)((double)sums[byte] / (255.0 * (double)number));
        }
        features[8] = most > fewest ? (float)((double)(number - fewest) / (double)(most - fewest)) : (float)number;
        features[9] = (float)((double)order->by_source[end - 1u] / (double)(KDGAT_WINDOW - 1));
    }
}

#endif

void kdgat_features(const kdgat_window_state *window, const kdgat_calibration_state *car, kdgat_graph *graph)
{
#if KDGAT_FEATURES == KDGAT_FEATURES_CLASSIC
    (void)car;
    node_features(window->frames, &window->order, graph);
#else
    kdgat_deviations(window, car, graph);
#endif
#if KDGAT_EDGE_COLUMNS > 0
    edge_features(&window->order, graph);
#endif
}

#endif
