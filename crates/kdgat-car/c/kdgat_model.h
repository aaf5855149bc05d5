/* The exported model: its layers and weights. kdgat_tables.c defines them. */
#ifndef KDGAT_MODEL_H
#define KDGAT_MODEL_H

#include "kdgat_attention.h"

/* Embedding of IDs. */
typedef struct {
    uint32_t columns;
    /* [rows][columns], a row for each ID of the vocabulary or each bucket of the hash embedding. */
    const kdgat_weight *weights;
#if KDGAT_INT8
    const float *scale; /* [rows]: value of a weight of 1 */
#endif
#if KDGAT_ID_INPUT == KDGAT_ID_INPUT_HASH
    /* Hash embedding (Svenstrup et al. 2017): for each probe the coefficients a and b of ((a id + b) mod (2^31 - 1)) mod rows; the last
     * pair is that of the row of importance. */
    uint32_t probes;
    uint32_t buckets;
    const uint32_t (*hash)[2]; /* [probes + 1] */
    const float *importance;   /* [4 * buckets][probes] */
#endif
} kdgat_embedding;

/* Writes the embedding of each node's ID to scratch->b, [nodes][columns], and returns the first layer's input. */
kdgat_rows kdgat_embed(const kdgat_embedding *embedding, const kdgat_graph *graph, kdgat_scratch *scratch);

#if KDGAT_GATV2
extern const float kdgat_edge_mean[KDGAT_EDGE_COLUMNS];
extern const float kdgat_edge_deviation[KDGAT_EDGE_COLUMNS];
#endif

#if KDGAT_MODEL == KDGAT_MODEL_GAT
extern const kdgat_embedding kdgat_gat_embedding; /* KDGAT_EMBEDDING columns */
extern const kdgat_conv kdgat_convs[KDGAT_LAYERS];
extern const kdgat_matrix kdgat_head[KDGAT_HEAD_LAYERS];
#endif
#if KDGAT_MODEL == KDGAT_MODEL_VGAE || KDGAT_PAIR
extern const kdgat_embedding kdgat_vgae_embedding;
extern const kdgat_conv kdgat_encoder[KDGAT_ENCODER_LAYERS];
extern const kdgat_matrix kdgat_mean;
extern const kdgat_conv kdgat_decoder[KDGAT_DECODER_LAYERS]; /* the last one has the continuous features as its output */
extern const kdgat_matrix kdgat_id_classifier;
#endif

#endif
