/* Input of the first layer: the embedding of a node's ID, and its continuous features. */
#include "kdgat_car.h"
#include "kdgat_model.h"

static float value_of(const kdgat_embedding *embedding, uint32_t row, uint32_t column)
{
    const float value = (float)embedding->weights[(size_t)row * embedding->columns + column];
#if KDGAT_INT8
    return value * embedding->scale[row];
#else
    return value;
#endif
}

#if KDGAT_ID_INPUT == KDGAT_ID_INPUT_HASH

static uint32_t hash(const uint32_t coefficients[2], uint32_t id, uint32_t rows)
{
    /* Coefficients have 31 bits and IDs 29, so the sum fits. */
    const uint64_t value = (uint64_t)coefficients[0] * id + coefficients[1];
    return (uint32_t)(value % 2147483647u) % rows;
}

static void embed(const kdgat_embedding *embedding, const kdgat_graph *graph, uint32_t node, float *to)
{
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    const uint32_t id = 0u; /* models of the profile set read no IDs */
#else
    const uint32_t id = graph->can_id[node] & 0x1fffffffu;
#endif
    const uint32_t probes = embedding->probes, buckets = embedding->buckets;
    const float *const importance = embedding->importance + (size_t)hash(embedding->hash[probes], id, 4u * buckets) * probes;
    uint32_t probe, k;
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    (void)graph;
    (void)node;
#endif
    for (k = 0; k < embedding->columns; k++) {
        to[k] = 0.0f;
    }
    for (probe = 0; probe < probes; probe++) {
        const uint32_t row = hash(embedding->hash[probe], id, buckets);
        for (k = 0; k < embedding->columns; k++) {
            to[k] += importance[probe] * value_of(embedding, row, k);
        }
    }
}

#else

static void embed(const kdgat_embedding *embedding, const kdgat_graph *graph, uint32_t node, float *to)
{
#if KDGAT_ID_INPUT == KDGAT_ID_INPUT_NONE
    const uint32_t row = 0u; /* UNKNOWN: models of the profile set read no IDs */
    uint32_t k;
    (void)graph;
    (void)node;
#else
    const uint32_t row = graph->id_index[node];
    uint32_t k;
#endif
    for (k = 0; k < embedding->columns; k++) {
        to[k] = value_of(embedding, row, k);
    }
}

#endif

kdgat_rows kdgat_embed(const kdgat_embedding *embedding, const kdgat_graph *graph, kdgat_scratch *scratch)
{
    kdgat_rows rows;
    uint32_t node;
    for (node = 0; node < graph->num_nodes; node++) {
        embed(embedding, graph, node, scratch->b + (size_t)node * embedding->columns);
    }
    rows.left = scratch->b;
    rows.left_columns = embedding->columns;
    rows.right = &graph->continuous[0][0];
    rows.right_columns = KDGAT_NODE_COLUMNS;
    return rows;
}
