/* The exported model: its layers and weights. kdgat_tables.c defines them. */
#ifndef KDGAT_MODEL_H
#define KDGAT_MODEL_H

#include "kdgat_attention.h"

/* Writes the embedding of each node's ID to scratch->b, [nodes][KDGAT_EMBEDDING], and returns the first layer's input. */
kdgat_rows kdgat_embed(const kdgat_graph *graph, kdgat_scratch *scratch);

#if KDGAT_ID_INPUT == KDGAT_ID_INPUT_HASH
/* Hash embedding (Svenstrup et al. 2017): for each probe the coefficients a and b of ((a id + b) mod (2^31 - 1)) mod rows; the last
 * pair is that of the row of weights. */
extern const uint32_t kdgat_hash[KDGAT_PROBES + 1][2];
extern const float kdgat_hash_weights[]; /* [4 * KDGAT_BUCKETS][KDGAT_PROBES] */
#endif
/* Rows of the embedding: of the vocabulary, or the buckets of the hash embedding. */
extern const kdgat_weight kdgat_embedding[]; /* [rows][KDGAT_EMBEDDING] */
#if KDGAT_INT8
extern const float kdgat_embedding_scale[]; /* [rows] */
#endif

#if KDGAT_GATV2
extern const float kdgat_edge_mean[KDGAT_EDGE_COLUMNS];
extern const float kdgat_edge_deviation[KDGAT_EDGE_COLUMNS];
#endif

#if KDGAT_MODEL == KDGAT_MODEL_GAT
extern const kdgat_conv kdgat_convs[KDGAT_LAYERS];
extern const kdgat_matrix kdgat_head[KDGAT_HEAD_LAYERS];
#else
extern const kdgat_conv kdgat_encoder[KDGAT_ENCODER_LAYERS];
extern const kdgat_matrix kdgat_mean;
extern const kdgat_conv kdgat_decoder[KDGAT_DECODER_LAYERS]; /* the last one has the continuous features as its output */
extern const kdgat_matrix kdgat_id_classifier;
#endif

#endif
