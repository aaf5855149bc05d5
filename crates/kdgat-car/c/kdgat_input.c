/* Input of the first layer: the embedding of a node's ID, and its continuous features. */
#include "kdgat_car.h"
#include "kdgat_model.h"

static float embedding(uint32_t row, uint32_t column)
{
    const float value = (float)kdgat_embedding[(size_t)row * KDGAT_EMBEDDING + column];
#if KDGAT_INT8
    return value * kdgat_embedding_scale[row];
#else
    return value;
#endif
}

#if KDGAT_ID_INPUT == KDGAT_ID_INPUT_HASH

static uint32_t hash(uint32_t probe, uint32_t id, uint32_t rows)
{
    /* Coefficients have 31 bits and IDs 29, so the sum fits. */
    const uint64_t value = (uint64_t)kdgat_hash[probe][0] * id + kdgat_hash[probe][1];
    return (uint32_t)(value % 2147483647u) % rows;
}

static void embed(const kdgat_graph *graph, uint32_t node, float *to)
{
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    const uint32_t id = 0u; /* models of the profile set read no IDs */
    (void)graph;
    (void)node;
#else
    const uint32_t id = graph->can_id[node] & 0x1fffffffu;
#endif
    const float *const weights = kdgat_hash_weights + (size_t)hash(KDGAT_PROBES, id, 4u * KDGAT_BUCKETS) * KDGAT_PROBES;
    uint32_t probe, k;
    for (k = 0; k < KDGAT_EMBEDDING; k++) {
        to[k] = 0.0f;
    }
    for (probe = 0; probe < KDGAT_PROBES; probe++) {
        const uint32_t row = hash(probe, id, KDGAT_BUCKETS);
        for (k = 0; k < KDGAT_EMBEDDING; k++) {
            to[k] += weights[probe] * embedding(row, k);
        }
    }
}

#else

static void embed(const kdgat_graph *graph, uint32_t node, float *to)
{
#if KDGAT_ID_INPUT == KDGAT_ID_INPUT_NONE
    const uint32_t row = 0u; /* UNKNOWN: models of the profile set read no IDs */
    (void)graph;
    (void)node;
#else
    const uint32_t row = graph->id_index[node];
#endif
    uint32_t k;
    for (k = 0; k < KDGAT_EMBEDDING; k++) {
        to[k] = embedding(row, k);
    }
}

#endif

kdgat_rows kdgat_embed(const kdgat_graph *graph, kdgat_scratch *scratch)
{
    kdgat_rows rows;
    uint32_t node;
    for (node = 0; node < graph->num_nodes; node++) {
        embed(graph, node, scratch->b + (size_t)node * KDGAT_EMBEDDING);
    }
    rows.left = scratch->b;
    rows.left_columns = KDGAT_EMBEDDING;
    rows.right = &graph->continuous[0][0];
    rows.right_columns = KDGAT_NODE_COLUMNS;
    return rows;
}
