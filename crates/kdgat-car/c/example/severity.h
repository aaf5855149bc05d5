/* Severity of an attack window: its distance to the threshold, as in kdgat's src/detect/alarm/severity.rs.
 *
 *   threshold on            distance                          medium from  high from
 *   deviations              deviations - threshold            1            3
 *   probability             difference of the log odds        1            3
 *   difficulty              difference of the logarithms      ln 1.25      ln 2 */
#ifndef KDGAT_SEVERITY_H
#define KDGAT_SEVERITY_H

#include "alarm.h"

/* Grade of a window by its deviations, on a calibrated car. */
alarm_severity severity_of_deviations(double deviations, double threshold, double nats);
/* By a classifier's probability. */
alarm_severity severity_of_probability(double score, double threshold);
/* By an autoencoder's difficulty. */
alarm_severity severity_of_difficulty(double score, double threshold);

#endif
