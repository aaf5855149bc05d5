/* The rich features of nodes and edges, in the order of the trainer's docs/data.md; those of nodes are standardised. */
#include "kdgat_car.h"

#include <math.h>
#include <string.h>

#if KDGAT_FEATURES == KDGAT_FEATURES_RICH

#define BYTES 8u
/* Gaps are clamped to this many seconds either way. */
#define LONGEST_GAP 1000.0
/* Standardised features are clamped to this many deviations either way. */
#define MOST_DEVIATIONS 10.0f

/* Columns of node features; before them: mean, deviation and range of each byte. */
enum { COUNT = 24, ENTROPY, SKEWNESS, KURTOSIS, CLUSTERING, FIRST_HALF, CHANGE_RATE, GAP_MEAN, GAP_DEVIATION, IN_DEGREE, OUT_DEGREE };

/* Time from one frame to the next in seconds; negative if time steps back. */
static double gap_seconds(const kdgat_frame *one, const kdgat_frame *next)
{
    const double gap = next->time - one->time;
    return gap > LONGEST_GAP ? LONGEST_GAP : (gap < -LONGEST_GAP ? -LONGEST_GAP : gap);
}

/* Shannon entropy of a payload's bytes in bits: log2 n - mean of log2 (number of occurrences of each byte). */
static double entropy(const kdgat_frame *frame)
{
    static const double log2_of[BYTES + 1u] = {0.0, 0.0, 1.0, 1.584962500721156, 2.0, 2.321928094887362, 2.584962500721156,
                                               2.807354922057604, 3.0};
    const uint32_t length = frame->length < BYTES ? frame->length : BYTES;
    double sum = 0.0;
    uint32_t i, j;

    for (i = 0; i < length; i++) {
        uint32_t occurrences = 0;
        for (j = 0; j < length; j++) {
            occurrences += frame->data[i] == frame->data[j] ? 1u : 0u;
        }
        sum += log2_of[occurrences];
    }
    return length == 0u ? 0.0 : log2_of[length] - sum / (double)length;
}

/* Mean, deviation and range of one byte; adds to the node's skewness and kurtosis. */
static void byte_statistics(const kdgat_frame *frames, const uint16_t *positions, uint32_t number, uint32_t byte, float *features,
                            double *skewness, double *kurtosis)
{
    const double count = (double)number;
    double mean, squares = 0.0, cubes = 0.0, fourths = 0.0;
    uint32_t sum = 0, lowest = 255, highest = 0, i;

    for (i = 0; i < number; i++) {
        const uint32_t value = frames[positions[i]].data[byte];
        sum += value;
        lowest = value < lowest ? value : lowest;
        highest = value > highest ? value : highest;
    }
    mean = (double)sum / count;
    features[byte] = (float)(mean / 255.0);
    features[2u * BYTES + byte] = (float)((double)(highest - lowest) / 255.0);
    for (i = 0; i < number; i++) {
        const double difference = (double)frames[positions[i]].data[byte] - mean, square = difference * difference;
        squares += square;
        cubes += square * difference;
        fourths += square * square;
    }
    if (squares > 0.0) {
        const double variance = squares / count;
        features[BYTES + byte] = (float)(sqrt(variance) / 255.0);
        *skewness += cubes / count / (variance * sqrt(variance));
        *kurtosis += fourths / count / (variance * variance) - 3.0;
    }
}

/* Changes and gaps between the frames of a node (Welford 1962). */
static void pair_statistics(const kdgat_frame *frames, const uint16_t *positions, uint32_t number, float *features)
{
    double mean = 0.0, squares = 0.0;
    uint32_t changes = 0, i, byte;

    for (i = 1; i < number; i++) {
        const kdgat_frame *const one = &frames[positions[i - 1u]], *const next = &frames[positions[i]];
        const double gap = gap_seconds(one, next), difference = gap - mean;
        for (byte = 0; byte < BYTES; byte++) {
            changes += one->data[byte] != next->data[byte] ? 1u : 0u;
        }
        mean += difference / (double)i;
        squares += difference * (gap - mean);
    }
    features[CHANGE_RATE] = (float)((double)changes / ((double)BYTES * ((double)number - 1.0)));
    features[GAP_MEAN] = (float)mean;
    features[GAP_DEVIATION] = (float)sqrt(squares / ((double)number - 1.0));
}

/* Features of a node's own frames. */
static void frame_features(const kdgat_frame *frames, const uint16_t *positions, uint32_t number, float *features)
{
    double entropies = 0.0, skewness = 0.0, kurtosis = 0.0;
    uint32_t first_half = 0, i;

    for (i = 0; i < number; i++) {
        first_half += positions[i] < KDGAT_WINDOW / 2 ? 1u : 0u;
        entropies += entropy(&frames[positions[i]]);
    }
    for (i = 0; i < BYTES; i++) {
        byte_statistics(frames, positions, number, i, features, &skewness, &kurtosis);
    }
    features[COUNT] = (float)number;
    features[ENTROPY] = (float)(entropies / (double)number);
    features[SKEWNESS] = (float)(skewness / (double)BYTES);
    features[KURTOSIS] = (float)(kurtosis / (double)BYTES);
    features[FIRST_HALF] = (float)((double)first_half / (double)number);
    if (number > 1u) {
        pair_statistics(frames, positions, number, features);
    }
}

/* Returns 1 if two different nodes are neighbours in either direction. */
static int adjacent(const kdgat_graph *graph, const kdgat_order *order, uint16_t one, uint16_t other)
{
    return kdgat_has_edge(graph, order, one, other) || kdgat_has_edge(graph, order, other, one);
}

/* Degrees and clustering coefficient (Watts and Strogatz 1998) of a node. */
static void structure_features(const kdgat_graph *graph, const kdgat_order *order, uint16_t node, float *features)
{
    uint16_t neighbours[KDGAT_MAX_NODES];
    uint32_t number = 0, triangles = 0, out_degree = 0, edge, i, j;

    for (edge = order->first_edge[node]; edge < order->first_edge[node + 1u]; edge++) {
        if (graph->source[edge] != node) {
            neighbours[number++] = graph->source[edge];
        }
    }
    for (edge = 0; edge < graph->num_edges; edge++) {
        if (graph->source[edge] == node) {
            out_degree++;
            if (graph->target[edge] != node && !kdgat_has_edge(graph, order, graph->target[edge], node)) {
                neighbours[number++] = graph->target[edge];
            }
        }
    }
    for (i = 0; i < number; i++) {
        for (j = i + 1u; j < number; j++) {
            triangles += adjacent(graph, order, neighbours[i], neighbours[j]) ? 1u : 0u;
        }
    }
    if (number > 1u) {
        features[CLUSTERING] = (float)((double)triangles / ((double)number * ((double)number - 1.0) / 2.0));
    }
    features[IN_DEGREE] = (float)(order->first_edge[node + 1u] - order->first_edge[node]);
    features[OUT_DEGREE] = (float)out_degree;
}

#if KDGAT_EDGE_COLUMNS > 0

static void edge_features(const kdgat_frame *frames, const kdgat_order *order, kdgat_graph *graph)
{
    uint16_t next = 0;
    uint32_t edge, number, i, byte;

    for (edge = 0; edge < graph->num_edges; edge++) {
        const uint16_t *const positions = kdgat_occurrences(order, &next, &number);
        float *const features = graph->edge_attributes[edge];
        uint32_t differences[BYTES] = {0, 0, 0, 0, 0, 0, 0, 0};
        double seconds = 0.0;

        for (i = 0; i < number; i++) {
            const kdgat_frame *const one = &frames[positions[i]], *const following = &frames[positions[i] + 1u];
            seconds += gap_seconds(one, following);
            for (byte = 0; byte < BYTES; byte++) {
                const int difference = (int)one->data[byte] - (int)following->data[byte];
                differences[byte] += (uint32_t)(difference < 0 ? -difference : difference);
            }
        }
        features[0] = (float)(seconds / (double)number);
        for (byte = 0; byte < BYTES; byte++) {
            features[1u + byte] = (float)((double)differences[byte] / (255.0 * (double)number));
        }
        features[9] = kdgat_has_edge(graph, order, graph->target[edge], graph->source[edge]) ? 1.0f : 0.0f;
        features[10] = (float)((double)number / (double)KDGAT_WINDOW);
    }
}

#endif

void kdgat_features(const kdgat_window_state *window, const kdgat_calibration_state *car, kdgat_graph *graph)
{
    const kdgat_frame *const frames = window->frames;
    const kdgat_order *const order = &window->order;
    uint32_t node, k;

    (void)car;
    for (node = 0; node < graph->num_nodes; node++) {
        float *const features = graph->continuous[node];
        const uint32_t begin = order->first[node], number = (uint32_t)order->first[node + 1u] - begin;
        memset(features, 0, sizeof graph->continuous[node]);
        if (number > 0u) {
            frame_features(frames, &order->by_source[begin], number, features);
        }
        structure_features(graph, order, (uint16_t)node, features);
        for (k = 0; k < KDGAT_NODE_COLUMNS; k++) {
            const float scaled = (features[k] - kdgat_node_mean[k]) / kdgat_node_deviation[k];
            features[k] = scaled > MOST_DEVIATIONS ? MOST_DEVIATIONS : (scaled < -MOST_DEVIATIONS ? -MOST_DEVIATIONS : scaled);
        }
    }
#if KDGAT_EDGE_COLUMNS > 0
    edge_features(frames, order, graph);
#endif
}

#endif
