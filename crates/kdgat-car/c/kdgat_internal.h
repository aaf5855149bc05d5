/* Types and functions that the sources of the detector share. Included by kdgat_car.h, which every source includes.
 *
 *   frame --kdgat_window_push--> graph --kdgat_model_score--> output --kdgat_judge--> result
 *
 * kdgat_config.h is generated. It defines, for the exported model:
 *
 *   KDGAT_WINDOW, KDGAT_STRIDE     frames of a window; frames from one window to the next
 *   KDGAT_FEATURES                 KDGAT_FEATURES_CLASSIC, KDGAT_FEATURES_RICH or KDGAT_FEATURES_PROFILE
 *   KDGAT_NODE_COLUMNS             continuous features of a node: 10, 35, ...
 *   KDGAT_EDGE_COLUMNS             features of an edge: 11, or 0 for a model that reads none
 *   KDGAT_MODEL                    KDGAT_MODEL_GAT or KDGAT_MODEL_VGAE
 *   KDGAT_PAIR                     1: a classifier (KDGAT_MODEL_GAT) and an autoencoder judge together, else 0
 *   KDGAT_CLASSIFIER_MEDIAN, ...   pairs: median and spread of the usual log odds and log difficulties, double
 *   KDGAT_THRESHOLD                threshold on the score, double: higher is an attack
 *   KDGAT_MODEL_DIGEST             uint64_t: first 8 bytes of the digest of the weights
 *   (files.rs and network.rs; the sizes of kdgat_scratch and of the network's layers as well)
 *
 *   KDGAT_VOCABULARY               rows of the vocabulary, row 0 (UNKNOWN) included
 *   KDGAT_ID_LIST                  1 if unknown IDs are evidence of an attack (classifiers with a list of known IDs), else 0
 *   (window/, with all that windows, features and calibration need)
 */
#ifndef KDGAT_INTERNAL_H
#define KDGAT_INTERNAL_H

#include <stdint.h>

#include "kdgat_config.h"

#define KDGAT_FEATURES_CLASSIC 1
#define KDGAT_FEATURES_RICH 2
#define KDGAT_FEATURES_PROFILE 3
#define KDGAT_MODEL_GAT 1
#define KDGAT_MODEL_VGAE 2

/* Most IDs without a frame in the window that are nodes, because they are overdue. */
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
#define KDGAT_MOST_OVERDUE 32u
#else
#define KDGAT_MOST_OVERDUE 0u
#endif
#define KDGAT_MAX_NODES (KDGAT_WINDOW + 1u + KDGAT_MOST_OVERDUE)
#define KDGAT_MAX_EDGES KDGAT_WINDOW
/* Mean error and mean squared error of each feature, cross entropy of the IDs; an autoencoder's calibration reads them. */
#define KDGAT_PROFILE_VALUES (2 * KDGAT_NODE_COLUMNS + 1)

/* The graph of a window. Nodes are its distinct IDs and the ID of the frame after it (profile set: overdue IDs as well), ascending. Edges are the distinct pairs of
 * neighbouring frames, sorted by (target, source) as in the trainer's store; an ID that follows itself has an edge to itself. */
typedef struct {
    uint16_t num_nodes;
    uint16_t num_edges;
    uint32_t can_id[KDGAT_MAX_NODES];
    uint16_t id_index[KDGAT_MAX_NODES]; /* vocabulary row, 0 for an ID outside it */
    uint8_t sends[KDGAT_MAX_NODES];     /* 1: has a frame in the window */
    /* Continuous features as the model reads them: already standardised for the rich set, deviations for the profile set. */
    float continuous[KDGAT_MAX_NODES][KDGAT_NODE_COLUMNS];
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    float surprise[KDGAT_MAX_NODES]; /* how unusual the node's frames are for its ID, in nats; 0 for usual ones */
    float silence[KDGAT_MAX_NODES];  /* seconds since the last frame of an overdue ID; 0 for IDs with a frame, NaN for others */
    float duration;                  /* seconds from the window's first frame to its latest */
    uint8_t unusual_bytes;           /* 1: a byte has a value that it never had, or changes by more than is usual */
#endif
    uint16_t source[KDGAT_MAX_EDGES];
    uint16_t target[KDGAT_MAX_EDGES];
#if KDGAT_EDGE_COLUMNS > 0
    /* Edge features in their own units, as the trainer's store has them. The model's forward pass standardises them, because a
     * self-loop has the mean of its node's other incoming edges. */
    float edge_attributes[KDGAT_MAX_EDGES][KDGAT_EDGE_COLUMNS];
#endif
} kdgat_graph;

/* Output of the model for one window. */
typedef struct {
    /* Classifier: log odds of an attack without the evidence of the ID list. Autoencoder: the difficulty. */
    float raw;
    /* Contribution of each node. Classifier: drop of the log odds without the node, without the evidence of the ID list; set by
     * kdgat_model_explain. Autoencoder: the node's error; set by kdgat_model_score. */
    float by_node[KDGAT_MAX_NODES];
#if KDGAT_MODEL == KDGAT_MODEL_VGAE || KDGAT_PAIR
    /* Autoencoder. Means over the nodes: error and squared error of each continuous feature, cross entropy of the IDs. */
    float error_means[KDGAT_PROFILE_VALUES];
#endif
} kdgat_model_output;

/* Vocabulary: IDs of rows 1, 2, ..., ascending (generated, kdgat_tables.c). */
extern const uint32_t kdgat_vocabulary[];

/* Intermediate values of the forward pass. Their sizes depend on the model (kdgat_config.h). */
typedef struct {
    float a[KDGAT_SCRATCH_A]; /* outputs of layers; which ones, is written in kdgat_gat.c and kdgat_vgae.c */
    float b[KDGAT_SCRATCH_B];
    float scores[KDGAT_SCRATCH_SCORES];              /* attention terms of nodes as sources and as targets */
    float values[KDGAT_SCRATCH_VALUES];              /* GATv2: the nodes' values as sources, for one head */
    float rows[KDGAT_SCRATCH_ROWS];                  /* inputs of four nodes; activations of the head for four of them */
    float outputs[4 * KDGAT_MOST_CHANNELS];          /* one head's outputs for four nodes */
    float pooled[KDGAT_MOST_POOLED];                 /* classifier: means over the nodes */
    float head[4 * KDGAT_MOST_POOLED];               /* classifier: activations of the head for four nodes */
    float weights[KDGAT_MAX_NODES];                  /* attention weights of one node's incoming edges */
    uint16_t first_edge[KDGAT_MAX_NODES + 1];        /* incoming edges of node i: first_edge[i] to first_edge[i + 1] - 1 */
    uint16_t source[KDGAT_MAX_EDGES + KDGAT_MAX_NODES]; /* their sources, ascending; each node has one self-loop */
    uint16_t edge[KDGAT_MAX_EDGES + KDGAT_MAX_NODES];   /* their edges of the graph; KDGAT_SELF_LOOP for the self-loop */
} kdgat_scratch;

#define KDGAT_SELF_LOOP 0xffffu

typedef struct kdgat_state kdgat_state;
struct kdgat_frame;
struct kdgat_result;

/* Windows and features (kdgat_window.c). Adds a frame; returns 1 if it completed a window, whose graph is then in state->graph. */
int kdgat_window_push(kdgat_state *state, const struct kdgat_frame *frame);

/* Forward pass (kdgat_gat.c, kdgat_vgae.c). Scores a graph of at least one node. */
void kdgat_model_score(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output);
/* Sets output->by_node for the graph that kdgat_model_score scored last with this scratch. For a classifier it costs a pass of the
 * head for each node; kdgat_push calls it for alarms only. */
void kdgat_model_explain(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output);
#if KDGAT_PAIR
/* Scores a graph with the autoencoder of a pair, whose classifier kdgat_model_score is (kdgat_vgae.c). */
void kdgat_partner_score(const kdgat_graph *graph, kdgat_scratch *scratch, kdgat_model_output *output);
/* Returns 1 if the window is more unusual to the autoencoder than to the classifier (kdgat_calibration.c). */
int kdgat_partner_tells(const kdgat_state *state);
#endif
/* Scores the last window's graph with all models (kdgat_car.c). */
void kdgat_score(kdgat_state *state);

/* Verdict (kdgat_calibration.c). Sets score, deviations and attack of the result from state->output. */
void kdgat_judge(const kdgat_state *state, struct kdgat_result *result);
/* Sets the nodes that weigh most: of the classifier with the evidence of the ID list in use; of a pair, those of the model to which the
 * window is more unusual. */
void kdgat_name_nodes(const kdgat_state *state, struct kdgat_result *result);

#endif
