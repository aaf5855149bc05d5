// An update by Adam and of the average of the weights, one pass over all of them: fused_adam.rs and optimizer.rs have the formulas.
//
// Arrays are accessed by index only: a test runs this file on the CPU, where an ARRAY checks every index.
#ifndef ARRAY
#define ARRAY(type) type* __restrict__
#endif

extern "C" __global__ void update_weights(
    unsigned long long count, float gradient_clip, float weight_decay, float share_first, float share_second, float beta_second, float step,
    float correction, float epsilon, float share_in_average, ARRAY(const float) norm, ARRAY(float) values, ARRAY(float) gradients,
    ARRAY(float) means, ARRAY(float) mean_squares, ARRAY(float) averages) {
  const long long place = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place >= static_cast<long long>(count)) {
    return;
  }
  float clip = 1;
  if (gradient_clip > 0) {
    const float factor = gradient_clip / (norm[0] + 1e-6f);
    // A NaN stays one.
    clip = factor >= 1 ? 1 : factor;
  }
  const float slope = gradients[place] * clip + weight_decay * values[place];
  const float mean = means[place] + share_first * (slope - means[place]);
  const float mean_square = beta_second * mean_squares[place] + share_second * (slope * slope);
  const float value = values[place] - step * mean / (sqrtf(mean_square) / correction + epsilon);
  means[place] = mean;
  mean_squares[place] = mean_square;
  values[place] = value;
  gradients[place] = 0;
  if (averages) {
    averages[place] += share_in_average * (value - averages[place]);
  }
}
