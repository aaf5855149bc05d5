/* Windows: frames in, the graph of a window out. */
#ifndef KDGAT_WINDOW_H
#define KDGAT_WINDOW_H

#include "kdgat_calibration.h"
#include "kdgat_history.h"

/* Frames of a window and the frame after it, to which the edge of its last frame leads. */
#define KDGAT_WINDOW_FRAMES (KDGAT_WINDOW + 1)

/* Order of a window's frames by node and by edge. */
typedef struct {
    uint16_t node[KDGAT_WINDOW_FRAMES]; /* node of each frame */
    uint16_t by_source[KDGAT_WINDOW];   /* positions in the window, ordered by the frame's node, then by position */
    uint16_t by_target[KDGAT_WINDOW];   /* positions, ordered by the next frame's node, by the frame's own, then by position */
    uint16_t first[KDGAT_MAX_NODES + 1];           /* frames of node i: by_source[first[i]] to by_source[first[i + 1] - 1] */
    uint16_t first_as_target[KDGAT_MAX_NODES + 1]; /* edges to node i: by_target[first_as_target[i]] and so on */
    uint16_t first_edge[KDGAT_MAX_NODES + 1];      /* edges of the graph to node i: first_edge[i] to first_edge[i + 1] - 1 */
} kdgat_order;

/* State of the windows. */
typedef struct {
    kdgat_frame frames[KDGAT_WINDOW_FRAMES]; /* frames since the next window's first one */
    uint32_t num_frames;
    uint32_t skip;           /* frames to drop before the next window's first one: the stride may be longer than a window */
    double latest;           /* time of the latest frame with a finite time */
    uint64_t windows;        /* complete windows */
    uint64_t first_frame;    /* number of the first of `frames` */
    uint64_t of_first_frame; /* of the window whose graph was made last: number and time of its first frame */
    double of_time;
    kdgat_order order;
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    kdgat_history history;
#endif
} kdgat_window_state;

/* Copies a frame: bytes beyond its length are 0, and a time that is no finite number becomes that of the frame before. */
void kdgat_window_copy(kdgat_window_state *state, const kdgat_frame *frame, kdgat_frame *to);

/* Adds a frame; returns 1 if it completed a window, whose graph is then in *graph. `car` has the profile in use. */
int kdgat_window_add(kdgat_window_state *state, const kdgat_calibration_state *car, const kdgat_frame *frame, kdgat_graph *graph);

/* Sets graph->continuous, and graph->edge_attributes if the model reads them (kdgat_features.c or kdgat_rich.c). The rest of the graph
 * must be set, and window->frames must be the window's and the one after it. */
void kdgat_features(const kdgat_window_state *window, const kdgat_calibration_state *car, kdgat_graph *graph);

#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
/* Sets graph->continuous for the profile set (kdgat_profile.c). */
void kdgat_deviations(const kdgat_window_state *window, const kdgat_calibration_state *car, kdgat_graph *graph);

/* Largest disagreement of a node's signals with those of other IDs under the model's own relations, in units of what is usual; negative
 * if it has no signal with a relation (kdgat_relations.c). */
float kdgat_disagreement(const kdgat_window_state *window, const kdgat_graph *graph, uint32_t node);
#endif

/* Position of the first node of the graph whose ID is not below id. */
uint32_t kdgat_place_of(const kdgat_graph *graph, uint32_t id);

/* Returns 1 if the graph has an edge from source to target. */
int kdgat_has_edge(const kdgat_graph *graph, const kdgat_order *order, uint16_t source, uint16_t target);

/* Positions of the occurrences of an edge in the window: returns the first, sets their number. Edges are asked for in ascending order:
 * *next is 0 for the first edge and is advanced. */
const uint16_t *kdgat_occurrences(const kdgat_order *order, uint16_t *next, uint32_t *count);

/* Row of the vocabulary for an ID; 0 (UNKNOWN) if it has none. */
uint16_t kdgat_vocabulary_row(uint32_t id);

#endif
