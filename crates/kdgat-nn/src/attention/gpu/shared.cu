// Graph attention on a GPU, forward and backward, without an array of edges × channels. Compiled at run time for one
// number of heads and channels (HEADS, CHANNELS) and one type of values:
//
//   REAL        float or double: scores, weights and sums
//   VALUES_BF16 1 if values are stored as bfloat16, 0 if as REAL
//
// One warp processes one node and head: its lanes work side by side on the node's edges to compute weights, and on the
// head's channels to add up rows. The order of each sum is fixed, so results are the same in every run; there are no
// atomic operations, no shared memory, and no synchronisation between warps.
//
// This file has the parts shared by GAT and GATv2; gat.cu and gatv2.cu follow it. ../kernels.rs and ../gatv2.rs
// document the computation and do the same on a CPU.
//
// Arrays are accessed by index only: a test runs this file on the CPU, where an ARRAY checks every index.
#ifndef ARRAY
#define ARRAY(type) type* __restrict__
#endif

typedef REAL Real;
typedef long long Index;

#if VALUES_BF16
struct Value {
  unsigned short bits;
};

__device__ inline Real widen(Value value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

// Rounds to nearest, ties to even, like torch.
__device__ inline Value narrow(Real value) {
  const unsigned bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return Value{static_cast<unsigned short>(is_nan ? 0x7fc0u : rounded)};
}
#else
typedef Real Value;

__device__ inline Real widen(Value value) {
  return value;
}

__device__ inline Value narrow(Real value) {
  return value;
}
#endif

constexpr int LANES = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
// Number of channels per lane: lane, lane + 32, ...
constexpr int CHANNELS_OF_LANE = (CHANNELS + LANES - 1) / LANES;

__device__ inline float exponential(float value) {
  return expf(value);
}

__device__ inline double exponential(double value) {
  return exp(value);
}

__device__ inline float magnitude(float value) {
  return fabsf(value);
}

__device__ inline double magnitude(double value) {
  return fabs(value);
}

// Sign bit, also of zeros: a weight may have been rounded to zero.
__device__ inline bool has_minus(float value) {
  return __float_as_int(value) < 0;
}

__device__ inline bool has_minus(double value) {
  return __double_as_longlong(value) < 0;
}

__device__ inline Real leaky(Real raw, Real negative_slope) {
  return raw > 0 ? raw : raw * negative_slope;
}

__device__ inline Real sum_of_warp(Real value) {
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(ALL_LANES, value, distance);
  }
  return value;
}

__device__ inline Real largest_of_warp(Real value) {
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    const Real other = __shfl_xor_sync(ALL_LANES, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

// Work item of a warp: its node and head, with item = node * HEADS + head.
struct Place {
  Index item;
  Index node;
  int head;
  int lane;
};

__device__ inline Place place_of_warp() {
  const Index item = (static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x) / LANES;
  return Place{item, item / HEADS, static_cast<int>(item % HEADS), static_cast<int>(threadIdx.x % LANES)};
}

// Calls body(part, channel) for each of the lane's channels; registers are indexed by part.
template <typename Body>
__device__ inline void for_each_channel(Body body) {
#pragma unroll
  for (int part = 0; part < CHANNELS_OF_LANE; ++part) {
    const int channel = static_cast<int>(threadIdx.x % LANES) + part * LANES;
    if (channel < CHANNELS) {
      body(part, channel);
    }
  }
}

// Word `position % 4` of Philox 4×32-10 (Salmon et al. 2011) for counter `position / 4`: the same masks as on the CPU.
__device__ inline unsigned random_word(unsigned long long seed, Index position) {
  const unsigned long long counter = static_cast<unsigned long long>(position) / 4;
  unsigned state[4] = {static_cast<unsigned>(counter), static_cast<unsigned>(counter >> 32), 0, 0};
  unsigned key[2] = {static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const unsigned long long first = 0xD2511F53ull * state[0];
    const unsigned long long second = 0xCD9E8D57ull * state[2];
    const unsigned high = static_cast<unsigned>(second >> 32) ^ state[1] ^ key[0];
    const unsigned low = static_cast<unsigned>(first >> 32) ^ state[3] ^ key[1];
    state[0] = high;
    state[1] = static_cast<unsigned>(second);
    state[2] = low;
    state[3] = static_cast<unsigned>(first);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  // Without an index: registers cannot be indexed.
  const unsigned first = position % 2 == 0 ? state[0] : state[1];
  const unsigned second = position % 2 == 0 ? state[2] : state[3];
  return position % 4 < 2 ? first : second;
}

// Attention weights from scores, and weighted sums: raw = s_j + t_i, or given per edge; attention = softmax over j of
// leaky_relu(raw); out_i = Σ_j attention_ij · values_j + bias. The sign of a saved weight records whether raw was
// positive.
extern "C" __global__ void attend(
    int nodes,
    ARRAY(const int) row_pointers, // [nodes + 1]
    ARRAY(const int) sources, // [edges]
    ARRAY(const Value) values, // [nodes, HEADS * CHANNELS]
    ARRAY(const Real) source_scores, // [nodes, HEADS], absent if scores of edges are given
    ARRAY(const Real) target_scores, // [nodes, HEADS], likewise
    ARRAY(const Real) edge_scores, // [edges, HEADS], or absent
    ARRAY(const Real) bias, // [HEADS * CHANNELS], or absent
    Real negative_slope,
    int has_dropout,
    unsigned long long seed,
    unsigned threshold, // words below it drop their weight
    Real kept_scale,
    ARRAY(Value) output, // [nodes, HEADS * CHANNELS]
    ARRAY(Real) signed_weights, // [edges, HEADS], before dropout, or absent
    ARRAY(Real) applied_weights) { // [edges, HEADS], after dropout, or absent
  const Place at = place_of_warp();
  if (at.node >= nodes) {
    return;
  }
  const Index first_edge = row_pointers[at.node];
  const Index end = row_pointers[at.node + 1];
  const Real target_score = edge_scores ? 0 : target_scores[at.item];
  const auto raw_of = [&](Index edge) -> Real {
    if (edge_scores) {
      return edge_scores[edge * HEADS + at.head];
    }
    return source_scores[static_cast<Index>(sources[edge]) * HEADS + at.head] + target_score;
  };

  // As in PyTorch Geometric: subtract the largest logit and add 1e-16 to the divisor.
  Real largest = -__uint_as_float(0x7f800000u); // infinity
  for (Index edge = first_edge + at.lane; edge < end; edge += LANES) {
    const Real logit = leaky(raw_of(edge), negative_slope);
    largest = logit > largest ? logit : largest;
  }
  largest = largest_of_warp(largest);
  Real sum = 0;
  for (Index edge = first_edge + at.lane; edge < end; edge += LANES) {
    sum += exponential(leaky(raw_of(edge), negative_slope) - largest);
  }
  const Real scale = 1 / (sum_of_warp(sum) + static_cast<Real>(1e-16));

  Real sums[CHANNELS_OF_LANE] = {};
  if (bias) {
    for_each_channel([&](int part, int channel) { sums[part] = bias[at.head * CHANNELS + channel]; });
  }
  // All lanes take part, since they exchange weights; lanes beyond the last edge contribute none.
  for (Index chunk = first_edge; chunk < end; chunk += LANES) {
    const Index edge = chunk + at.lane;
    Real weight = 0;
    int source = 0;
    if (edge < end) {
      source = sources[edge];
      const Real raw = raw_of(edge);
      const Index position = edge * HEADS + at.head;
      weight = exponential(leaky(raw, negative_slope) - largest) * scale;
      if (signed_weights) {
        signed_weights[position] = raw > 0 ? weight : -weight;
      }
      if (has_dropout) {
        weight = random_word(seed, position) >= threshold ? weight * kept_scale : 0;
      }
      if (applied_weights) {
        applied_weights[position] = weight;
      }
    }
    const int edges = end - chunk < LANES ? static_cast<int>(end - chunk) : LANES;
    for (int other = 0; other < edges; ++other) {
      const Real factor = __shfl_sync(ALL_LANES, weight, other);
      const Index row = (static_cast<Index>(__shfl_sync(ALL_LANES, source, other)) * HEADS + at.head) * CHANNELS;
      for_each_channel([&](int part, int channel) {
        sums[part] += factor * widen(values[row + channel]);
      });
    }
  }
  for_each_channel([&](int part, int channel) {
    output[at.item * CHANNELS + channel] = narrow(sums[part]);
  });
}

// Backward over incoming edges: gradients of the raw scores, and their sums by target.
extern "C" __global__ void attend_backward_targets(
    int nodes,
    ARRAY(const int) row_pointers, // [nodes + 1]
    ARRAY(const int) sources, // [edges]
    ARRAY(const Value) values, // [nodes, HEADS * CHANNELS]
    ARRAY(const Value) gradient, // of the output, [nodes, HEADS * CHANNELS]
    ARRAY(const Real) signed_weights, // [edges, HEADS]
    ARRAY(const Real) applied_weights, // [edges, HEADS], absent without dropout
    Real negative_slope,
    Real kept_scale,
    ARRAY(Real) raw_gradients, // [edges, HEADS]
    ARRAY(Real) target_gradients) { // [nodes, HEADS]
  const Place at = place_of_warp();
  if (at.node >= nodes) {
    return;
  }
  const Index first_edge = row_pointers[at.node];
  const Index end = row_pointers[at.node + 1];
  Real gradient_row[CHANNELS_OF_LANE] = {};
  for_each_channel([&](int part, int channel) {
    gradient_row[part] = widen(gradient[at.item * CHANNELS + channel]);
  });

  // Gradients g of the weights a before dropout, and Σ a·g.
  Real mean = 0;
  for (Index edge = first_edge; edge < end; ++edge) {
    const Index row = (static_cast<Index>(sources[edge]) * HEADS + at.head) * CHANNELS;
    Real product = 0;
    for_each_channel([&](int part, int channel) {
      product += gradient_row[part] * widen(values[row + channel]);
    });
    product = sum_of_warp(product);
    const Index position = edge * HEADS + at.head;
    if (applied_weights) {
      product *= applied_weights[position] > 0 ? kept_scale : 0;
    }
    mean += magnitude(signed_weights[position]) * product;
    // Written by the lane that reads it again below.
    if ((edge - first_edge) % LANES == at.lane) {
      raw_gradients[position] = product;
    }
  }
  // a · (g − Σ a·g) · slope
  Real total = 0;
  for (Index edge = first_edge + at.lane; edge < end; edge += LANES) {
    const Index position = edge * HEADS + at.head;
    const Real weight = signed_weights[position];
    const Real slope = has_minus(weight) ? negative_slope : 1;
    const Real raw_gradient = magnitude(weight) * (raw_gradients[position] - mean) * slope;
    raw_gradients[position] = raw_gradient;
    total += raw_gradient;
  }
  total = sum_of_warp(total);
  if (at.lane == 0) {
    target_gradients[at.item] = total;
  }
}
