#include "severity.h"

#include <float.h>
#include <math.h>

/* A distance that is NaN counts as low. */
static alarm_severity grade(double distance, double medium, double high)
{
    if (distance >= high) {
        return ALARM_HIGH;
    }
    return distance >= medium ? ALARM_MEDIUM : ALARM_LOW;
}

/* A threshold outside the range of probabilities counts as its nearest end. */
static double log_odds(double probability)
{
    const double within = probability < 0.0 ? 0.0 : probability > 1.0 ? 1.0 : probability;
    return log(within) - log(1.0 - within);
}

static double log_difficulty(double score)
{
    return log(score > DBL_MIN ? score : DBL_MIN);
}

alarm_severity severity_of_deviations(double deviations, double threshold, double nats)
{
    return grade((deviations - threshold) * (nats < 1.0 ? nats : 1.0), 1.0, 3.0);
}

alarm_severity severity_of_probability(double score, double threshold)
{
    return grade(log_odds(score) - log_odds(threshold), 1.0, 3.0);
}

alarm_severity severity_of_difficulty(double score, double threshold)
{
    return grade(log_difficulty(score) - log_difficulty(threshold), 0.22314355131420976, 0.6931471805599453);
}
