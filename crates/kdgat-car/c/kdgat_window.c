/* Cuts frames into windows and makes the graph of each: nodes, edges and their order. */
#include "kdgat_car.h"

#include <string.h>

/* Identifiers have 29 bits. */
#define ID_MASK 0x1fffffffu
/* Longest payload (CAN FD). */
#define MOST_BYTES 64u

uint16_t kdgat_vocabulary_row(uint32_t id)
{
    uint32_t low = 0, high = KDGAT_VOCABULARY - 1u;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2u;
        if (kdgat_vocabulary[middle] < id) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return (uint16_t)(low < KDGAT_VOCABULARY - 1u && kdgat_vocabulary[low] == id ? low + 1u : 0u);
}

uint32_t kdgat_place_of(const kdgat_graph *graph, uint32_t id)
{
    uint32_t low = 0, high = graph->num_nodes;
    while (low < high) {
        const uint32_t middle = (low + high) / 2u;
        if (graph->can_id[middle] < id) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Adds a node unless there is one with this ID. */
static void add_node(kdgat_graph *graph, uint32_t id)
{
    const uint32_t node = kdgat_place_of(graph, id);
    if (node == graph->num_nodes || graph->can_id[node] != id) {
        memmove(&graph->can_id[node + 1u], &graph->can_id[node], (graph->num_nodes - node) * sizeof graph->can_id[0]);
        graph->can_id[node] = id;
        graph->num_nodes++;
    }
}

/* Nodes are the distinct IDs, ascending. */
static void find_nodes(kdgat_window_state *state, kdgat_graph *graph)
{
    const kdgat_frame *const frames = state->frames;
    kdgat_order *const order = &state->order;
    uint32_t at, node;

    graph->num_nodes = 0;
    for (at = 0; at < KDGAT_WINDOW_FRAMES; at++) {
        add_node(graph, frames[at].id);
    }
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    kdgat_find_overdue(&state->history, state->first_frame, frames[KDGAT_WINDOW - 1u].time);
    for (at = 0; at < state->history.num_overdue; at++) {
        add_node(graph, state->history.overdue[at]);
    }
#endif
    for (node = 0; node < graph->num_nodes; node++) {
        graph->id_index[node] = kdgat_vocabulary_row(graph->can_id[node]);
        graph->sends[node] = 0;
    }
    for (at = 0; at < KDGAT_WINDOW_FRAMES; at++) {
        order->node[at] = (uint16_t)kdgat_place_of(graph, frames[at].id);
    }
    for (at = 0; at < KDGAT_WINDOW; at++) {
        graph->sends[order->node[at]] = 1;
    }
}

/* Sets first[i] to the number of entries of nodes below i. */
static void count(const uint16_t *nodes, uint32_t num_nodes, uint16_t *first)
{
    uint32_t at, node;
    memset(first, 0, (num_nodes + 1u) * sizeof first[0]);
    for (at = 0; at < KDGAT_WINDOW; at++) {
        first[nodes[at] + 1u]++;
    }
    for (node = 0; node < num_nodes; node++) {
        first[node + 1u] = (uint16_t)(first[node + 1u] + first[node]);
    }
}

/* Two stable counting sorts of the positions: by source, then by target. */
static void sort_positions(kdgat_order *order, uint32_t num_nodes)
{
    uint16_t *const next = order->first_edge; /* next free place of each node; set to its real meaning later */
    uint32_t at;

    count(order->node, num_nodes, order->first);
    memcpy(next, order->first, num_nodes * sizeof next[0]);
    for (at = 0; at < KDGAT_WINDOW; at++) {
        order->by_source[next[order->node[at]]++] = (uint16_t)at;
    }
    count(order->node + 1, num_nodes, order->first_as_target);
    memcpy(next, order->first_as_target, num_nodes * sizeof next[0]);
    for (at = 0; at < KDGAT_WINDOW; at++) {
        const uint16_t position = order->by_source[at];
        order->by_target[next[order->node[position + 1u]]++] = position;
    }
}

const uint16_t *kdgat_occurrences(const kdgat_order *order, uint16_t *next, uint32_t *number)
{
    const uint16_t begin = *next, first = order->by_target[begin];
    const uint16_t source = order->node[first], target = order->node[first + 1u];
    uint32_t end = begin + 1u;
    while (end < KDGAT_WINDOW && order->node[order->by_target[end]] == source && order->node[order->by_target[end] + 1u] == target) {
        end++;
    }
    *next = (uint16_t)end;
    *number = end - begin;
    return &order->by_target[begin];
}

/* Edges are the distinct pairs of neighbouring frames. */
static void find_edges(kdgat_order *order, kdgat_graph *graph)
{
    uint16_t next = 0;
    uint32_t number, target = 0;

    graph->num_edges = 0;
    while (next < KDGAT_WINDOW) {
        const uint16_t position = *kdgat_occurrences(order, &next, &number);
        graph->source[graph->num_edges] = order->node[position];
        graph->target[graph->num_edges] = order->node[position + 1u];
        for (; target <= graph->target[graph->num_edges]; target++) {
            order->first_edge[target] = graph->num_edges;
        }
        graph->num_edges++;
    }
    for (; target <= graph->num_nodes; target++) {
        order->first_edge[target] = graph->num_edges;
    }
}

int kdgat_has_edge(const kdgat_graph *graph, const kdgat_order *order, uint16_t source, uint16_t target)
{
    uint32_t low = order->first_edge[target], high = order->first_edge[target + 1u];
    const uint32_t end = high;
    while (low < high) {
        const uint32_t middle = (low + high) / 2u;
        if (graph->source[middle] < source) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low < end && graph->source[low] == source;
}

void kdgat_window_copy(kdgat_window_state *state, const kdgat_frame *frame, kdgat_frame *to)
{
    uint32_t byte;

    /* The difference of infinity or NaN with itself is NaN. */
    if (frame->time - frame->time == 0.0) {
        state->latest = frame->time;
    }
    to->time = state->latest;
    to->id = frame->id & ID_MASK;
    to->length = (uint8_t)(frame->length < MOST_BYTES ? frame->length : MOST_BYTES);
    for (byte = 0; byte < 8u; byte++) {
        to->data[byte] = (uint8_t)(byte < to->length ? frame->data[byte] : 0);
    }
}

/* Drops the frames before the next window. */
static void advance(kdgat_window_state *state)
{
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    kdgat_history *const history = &state->history;
    uint32_t at;
    for (at = 0; at < KDGAT_WINDOW_FRAMES && at < KDGAT_STRIDE; at++) {
        kdgat_pass(history, state->frames[at].id, &history->facts[at]);
    }
    for (at = KDGAT_STRIDE; at < KDGAT_WINDOW_FRAMES; at++) {
        history->facts[at - KDGAT_STRIDE] = history->facts[at];
    }
#endif
    if (KDGAT_STRIDE < KDGAT_WINDOW_FRAMES) {
        state->num_frames = KDGAT_WINDOW_FRAMES - KDGAT_STRIDE;
        memmove(state->frames, state->frames + KDGAT_STRIDE, state->num_frames * sizeof state->frames[0]);
    } else {
        state->num_frames = 0;
        state->skip = KDGAT_STRIDE - KDGAT_WINDOW_FRAMES;
    }
    state->first_frame += KDGAT_STRIDE;
}

/* Passes over a frame between two windows. */
static void skip(kdgat_window_state *state, const kdgat_frame *frame)
{
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    kdgat_frame copied;
    kdgat_fact fact;
    kdgat_window_copy(state, frame, &copied);
    kdgat_observe(&state->history, &copied, &fact);
    kdgat_pass(&state->history, copied.id, &fact);
#else
    (void)frame;
#endif
    state->skip--;
}

/* Observes the frame that was stored last. The frame after a window is observed after the window's graph was made. */
static void observe(kdgat_window_state *state)
{
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    const uint32_t at = state->num_frames - 1u;
    kdgat_observe(&state->history, &state->frames[at], &state->history.facts[at]);
#else
    (void)state;
#endif
}

int kdgat_window_add(kdgat_window_state *state, const kdgat_calibration_state *car, const kdgat_frame *frame, kdgat_graph *graph)
{
    if (state->skip > 0u) {
        skip(state, frame);
        return 0;
    }
    kdgat_window_copy(state, frame, &state->frames[state->num_frames++]);
    if (state->num_frames < KDGAT_WINDOW_FRAMES) {
        observe(state);
        return 0;
    }
    find_nodes(state, graph);
    sort_positions(&state->order, graph->num_nodes);
    find_edges(&state->order, graph);
    kdgat_features(state, car, graph);
    observe(state);
    state->of_first_frame = state->first_frame;
    state->of_time = state->frames[0].time;
    state->windows++;
    advance(state);
    return 1;
}

int kdgat_window_push(kdgat_state *state, const kdgat_frame *frame)
{
    return kdgat_window_add(&state->window, &state->calibration, frame, &state->graph);
}
