//! Figures that an operator reads: false alarms an hour of driving, attack episodes found, and the delay until they are found.
//!
//! A [`Watch`] takes the windows of a file in the order of time, in constant memory, so an evaluation and a live stream get
//! the same figures. Its clock counts traffic. A window lasts from its start to the start of the next one, so no time is counted twice
//! where windows overlap. A step back in time counts nothing. A gap counts about one second, as in a calibration: starts alone do not
//! show a gap within a window, so a window lasts at most one second longer than is usual in the file.
//!
//! An episode of attacks is a run of windows with an attack; runs with less than one second of attack-free traffic between them
//! are one episode. It is found if there is an alarm in a window with an attack, and the delay lasts from the start of its first
//! window to the end of the first such window, which is when a detector can know. Episodes of alarms are defined in the same way.

use std::collections::VecDeque;

use super::bootstrap::quantile;

/// Seconds without an attack (or alarm) from which on the next one belongs to another episode.
const APART_SECONDS: f64 = 1.0;
/// Longest time counted for a gap in a log.
const LONGEST_GAP_SECONDS: f64 = 1.0;
/// Windows at the start of a file whose median duration is the usual one. Only so many are in memory.
const USUAL_WINDOWS: usize = 100;
const SECONDS_PER_HOUR: f64 = 3600.0;

/// Columns of `metrics.csv`, in the order of [`OperatorFigures::values`].
pub const OPERATOR_COLUMNS: [&str; 6] = [
    "false_alarms_per_hour",
    "hours_without_attack",
    "episodes",
    "episodes_found",
    "median_delay_seconds",
    "largest_delay_seconds",
];

/// How traffic is cut into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Frames of a window.
    pub window: usize,
    /// Frames from the start of one window to the start of the next, at least 1.
    pub stride: usize,
}

/// A window with its label and the decision about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedWindow {
    /// Timestamp of its first frame, in seconds.
    pub start: f64,
    /// True if it has an attack.
    pub attack: bool,
    /// True if it was called an attack.
    pub alarm: bool,
    /// False if it is left out of the test: time passes, but nothing is counted.
    pub counted: bool,
}

/// The figures of one file, or of several ([`OperatorFigures::add`]).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OperatorFigures {
    /// Seconds of all windows.
    pub seconds: f64,
    /// Seconds of the windows without an attack.
    pub seconds_without_attack: f64,
    /// Windows called attacks.
    pub alarms: u64,
    /// Episodes of alarms.
    pub alarm_episodes: u64,
    /// Windows without an attack that were called attacks.
    pub false_alarms: u64,
    /// Episodes of attacks.
    pub episodes: u64,
    /// Seconds until each found episode was found.
    pub delays_seconds: Vec<f64>,
}

impl OperatorFigures {
    /// Figures of a file's windows, in the order of time.
    pub fn of(cut: Cut, windows: impl IntoIterator<Item = JudgedWindow>) -> Self {
        let mut watch = Watch::new(cut);
        windows.into_iter().for_each(|window| watch.push(window));
        watch.finish()
    }

    /// Adds the figures of another file.
    pub fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.seconds_without_attack += other.seconds_without_attack;
        self.alarms += other.alarms;
        self.alarm_episodes += other.alarm_episodes;
        self.false_alarms += other.false_alarms;
        self.episodes += other.episodes;
        self.delays_seconds.extend(other.delays_seconds);
    }

    /// Hours of driving without an attack.
    pub fn hours_without_attack(&self) -> f64 {
        self.seconds_without_attack / SECONDS_PER_HOUR
    }

    /// False alarms an hour of driving without an attack; NaN without such traffic.
    pub fn false_alarms_per_hour(&self) -> f64 {
        per_hour(self.false_alarms, self.seconds_without_attack)
    }

    /// The rate of false alarms an hour that fewer than so many would contradict: the upper end of a one-sided 95 % interval (Poisson). No
    /// false alarm in 153 s is at most 70 an hour. NaN without such traffic.
    pub fn false_alarms_per_hour_at_most(&self) -> f64 {
        if self.seconds_without_attack > 0.0 {
            most_expected(self.false_alarms) * SECONDS_PER_HOUR / self.seconds_without_attack
        } else {
            f64::NAN
        }
    }

    /// Alarms an hour of driving; NaN without traffic.
    pub fn alarms_per_hour(&self) -> f64 {
        per_hour(self.alarms, self.seconds)
    }

    /// Episodes of attacks with an alarm.
    pub fn episodes_found(&self) -> u64 {
        self.delays_seconds.len() as u64
    }

    /// Median delay of the found episodes; NaN if none was found.
    pub fn median_delay_seconds(&self) -> f64 {
        let mut delays = self.delays_seconds.clone();
        delays.sort_unstable_by(f64::total_cmp);
        quantile(&delays, 0.5)
    }

    /// Largest delay of the found episodes; NaN if none was found.
    pub fn largest_delay_seconds(&self) -> f64 {
        self.delays_seconds.iter().copied().fold(f64::NAN, f64::max)
    }

    /// Formats `12 of 14`, the episodes found; `-` without an episode.
    pub fn found(&self) -> String {
        if self.episodes == 0 { "-".to_owned() } else { format!("{} of {}", self.episodes_found(), self.episodes) }
    }

    /// Formats the median delay, such as `0.15 s`; `-` if nothing was found.
    pub fn delay(&self) -> String {
        let median = self.median_delay_seconds();
        if median.is_nan() { "-".to_owned() } else { format!("{median:.2} s") }
    }

    /// Values of [`OPERATOR_COLUMNS`]; NaN where undefined.
    pub fn values(&self) -> [f64; OPERATOR_COLUMNS.len()] {
        [
            self.false_alarms_per_hour(),
            self.hours_without_attack(),
            self.episodes as f64,
            self.episodes_found() as f64,
            self.median_delay_seconds(),
            self.largest_delay_seconds(),
        ]
    }
}

/// The expectation of a Poisson distribution with which at most `count` events happen in 5 % of all cases.
fn most_expected(count: u64) -> f64 {
    /// Events above which a normal approximation (Wilson and Hilferty 1931) is exact to a millionth.
    const MANY: u64 = 1000;
    const UNLIKELY: f64 = 0.05;
    const NORMAL_QUANTILE: f64 = 1.644_853_626_951_472_2;
    if count > MANY {
        let shape = count as f64 + 1.0;
        return shape * (1.0 - 1.0 / (9.0 * shape) + NORMAL_QUANTILE / (3.0 * shape.sqrt())).powi(3);
    }
    let at_most = |expected: f64| {
        let mut probability = (-expected).exp();
        let mut sum = probability;
        for event in 1..=count {
            probability *= expected / event as f64;
            sum += probability;
        }
        sum
    };
    // The probability falls with the expectation.
    let (mut low, mut high) = (0.0, 2.0 * count as f64 + 10.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if at_most(middle) > UNLIKELY { low = middle } else { high = middle }
    }
    high
}

fn per_hour(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 * SECONDS_PER_HOUR / seconds } else { f64::NAN }
}

/// Computes the figures of a file window by window.
#[derive(Debug)]
pub struct Watch {
    cut: Cut,
    /// The file's first windows, until the usual duration is known.
    held: Vec<JudgedWindow>,
    usual_seconds: Option<f64>,
    /// The window whose end is not known yet.
    last: Option<JudgedWindow>,
    /// Position of `last` in the file, and the clock at its start.
    position: usize,
    clock: f64,
    attacks: Episodes,
    alarms: Episodes,
    /// Clock at the start of the current episode of attacks, until it is found.
    unfound_since: Option<f64>,
    /// Alarms whose windows have not ended yet.
    found: VecDeque<Found>,
    figures: OperatorFigures,
}

/// The first alarm of an episode.
#[derive(Debug)]
struct Found {
    /// Clock at the start of the episode.
    since: f64,
    /// Position of the window in which, or at the start of which, the alarm's window ends.
    ends_in: usize,
}

impl Watch {
    /// Creates a watch for a file that was cut in this way.
    pub fn new(cut: Cut) -> Self {
        Self {
            cut: Cut { stride: cut.stride.max(1), ..cut },
            held: Vec::new(),
            usual_seconds: None,
            last: None,
            position: 0,
            clock: 0.0,
            attacks: Episodes::default(),
            alarms: Episodes::default(),
            unfound_since: None,
            found: VecDeque::new(),
            figures: OperatorFigures::default(),
        }
    }

    /// Adds the file's next window.
    pub fn push(&mut self, window: JudgedWindow) {
        match self.usual_seconds {
            Some(usual) => self.follow(window, usual),
            None => {
                self.held.push(window);
                if self.held.len() > USUAL_WINDOWS {
                    self.settle();
                }
            }
        }
    }

    /// The figures of all windows. The last window is given the usual duration, because its end is unknown.
    pub fn finish(mut self) -> OperatorFigures {
        let usual = self.usual_seconds.unwrap_or_else(|| self.settle());
        if let Some(last) = self.last.take() {
            self.pass(last, usual);
        }
        for Found { since, ends_in } in std::mem::take(&mut self.found) {
            let missing = (ends_in - self.position) as f64 + self.rest_of_stride();
            self.figures.delays_seconds.push(self.clock + missing * usual - since);
        }
        self.figures
    }

    /// Sets the usual duration from the windows held back, and takes them.
    fn settle(&mut self) -> f64 {
        let durations = self.held.windows(2).map(|pair| pair[1].start - pair[0].start);
        let mut durations: Vec<f64> = durations.filter(|seconds| *seconds > 0.0).collect();
        durations.sort_unstable_by(f64::total_cmp);
        let usual = if durations.is_empty() { 0.0 } else { quantile(&durations, 0.5) };
        self.usual_seconds = Some(usual);
        std::mem::take(&mut self.held).into_iter().for_each(|window| self.follow(window, usual));
        usual
    }

    /// Takes a window, which ends the one before it.
    fn follow(&mut self, window: JudgedWindow, usual: f64) {
        if let Some(last) = self.last.replace(window) {
            let seconds = window.start - last.start;
            // Not `clamp`: NaN counts as no time.
            self.pass(last, if seconds > 0.0 { seconds.min(usual + LONGEST_GAP_SECONDS) } else { 0.0 });
        }
    }

    /// Counts a window of this duration, and moves the clock to its end.
    fn pass(&mut self, window: JudgedWindow, seconds: f64) {
        if window.counted {
            self.count(window, seconds);
        }
        if !window.attack {
            self.attacks.pause_seconds += seconds;
        }
        if !window.alarm {
            self.alarms.pause_seconds += seconds;
        }
        while self.found.front().is_some_and(|found| found.ends_in == self.position) {
            let end = self.clock + self.rest_of_stride() * seconds;
            self.figures.delays_seconds.extend(self.found.pop_front().map(|found| end - found.since));
        }
        self.clock += seconds;
        self.position += 1;
    }

    fn count(&mut self, window: JudgedWindow, seconds: f64) {
        self.figures.seconds += seconds;
        if window.alarm {
            self.figures.alarms += 1;
            self.figures.alarm_episodes += u64::from(self.alarms.begins());
        }
        if !window.attack {
            self.figures.seconds_without_attack += seconds;
            self.figures.false_alarms += u64::from(window.alarm);
            return;
        }
        if self.attacks.begins() {
            self.figures.episodes += 1;
            self.unfound_since = Some(self.clock);
        }
        if let Some(since) = self.unfound_since.take_if(|_| window.alarm) {
            self.found.push_back(Found { since, ends_in: self.position + self.cut.window / self.cut.stride });
        }
    }

    /// Share of a stride between the end of a window and the start of a window before it.
    fn rest_of_stride(&self) -> f64 {
        (self.cut.window % self.cut.stride) as f64 / self.cut.stride as f64
    }
}

/// Divides windows of a kind into episodes.
#[derive(Debug)]
struct Episodes {
    /// Seconds without such a window since the last one.
    pause_seconds: f64,
}

impl Default for Episodes {
    fn default() -> Self {
        Self { pause_seconds: f64::INFINITY }
    }
}

impl Episodes {
    /// Takes a window of the kind; returns true if it begins an episode.
    fn begins(&mut self) -> bool {
        std::mem::take(&mut self.pause_seconds) >= APART_SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upper ends of one-sided 95 % intervals: scipy's `chi2.ppf(0.95, 2 * count + 2) / 2`.
    #[test]
    fn few_false_alarms_bound_their_rate() {
        for (count, expected) in [(0, 2.995_732), (1, 4.743_865), (4, 9.153_519), (100, 118.079_5), (2000, 2075.143)] {
            assert!((most_expected(count) / expected - 1.0).abs() < 1e-5, "{count}: {}", most_expected(count));
        }
        let figures = OperatorFigures { seconds_without_attack: 153.0, ..OperatorFigures::default() };
        assert_eq!(figures.false_alarms_per_hour_at_most().floor(), 70.0);
        assert!(OperatorFigures::default().false_alarms_per_hour_at_most().is_nan());
    }

    const CUT: Cut = Cut { window: 100, stride: 100 };

    /// Windows of a quarter of a second: `.` attack-free, `!` a false alarm, `a` a missed attack, `A` a found one, `x` left out.
    fn windows(text: &str) -> Vec<JudgedWindow> {
        let window = |(position, letter): (usize, char)| JudgedWindow {
            start: 1000.0 + 0.25 * position as f64,
            attack: matches!(letter, 'a' | 'A'),
            alarm: matches!(letter, '!' | 'A'),
            counted: letter != 'x',
        };
        text.chars().enumerate().map(window).collect()
    }

    fn of(text: &str) -> OperatorFigures {
        OperatorFigures::of(CUT, windows(text))
    }

    #[test]
    fn the_figures_of_a_drive() {
        // Two runs half a second apart are one episode; the third, one second later, is another, and it is missed.
        let found = of("....!..!aaA.!aA....aa..!");
        assert_eq!((found.seconds, found.seconds_without_attack), (24.0 / 4.0, 17.0 / 4.0));
        assert_eq!((found.alarms, found.false_alarms), (6, 4));
        assert_eq!(found.false_alarms_per_hour(), 4.0 / 4.25 * 3600.0);
        assert_eq!(found.alarms_per_hour(), 3600.0);
        assert_eq!((found.episodes, found.episodes_found()), (2, 1));
        // Alarms at 1, 1.75, 2.5, 3, 3.5 and 5.75 s: only before the last is there a second of quiet.
        assert_eq!(found.alarm_episodes, 2);
        // From the start of the first `a` to the end of the first `A`.
        assert_eq!(found.delays_seconds, [0.75]);
        assert_eq!(found.values()[4..], [0.75, 0.75]);
    }

    #[test]
    fn the_median_is_over_found_episodes() {
        let found = of("A....aA....aaaA....aa....");
        assert_eq!((found.episodes, found.episodes_found()), (4, 3));
        assert_eq!(found.delays_seconds, [0.25, 0.5, 1.0]);
        assert_eq!((found.median_delay_seconds(), found.largest_delay_seconds()), (0.5, 1.0));
    }

    #[test]
    fn undefined_figures_are_not_numbers() {
        let [false_alarms, hours, episodes, found, median, largest] = of("").values();
        assert!(false_alarms.is_nan() && median.is_nan() && largest.is_nan());
        assert_eq!([hours, episodes, found], [0.0; 3]);
        assert!(of("aA").false_alarms_per_hour().is_nan(), "all of it is an attack");
        let missed = of("..aa..");
        assert!(missed.median_delay_seconds().is_nan() && missed.episodes == 1 && missed.episodes_found() == 0);
        // One window alone has no known duration.
        assert_eq!(of("!").seconds, 0.0);
        assert!(of("!").alarms_per_hour().is_nan());
    }

    #[test]
    fn windows_left_out_take_time_and_count_nothing() {
        let found = of("..aAxxxxaA..");
        assert_eq!((found.seconds, found.seconds_without_attack, found.alarms), (2.0, 1.0, 2));
        assert_eq!((found.episodes, found.alarm_episodes), (2, 2), "a second was left out between them");
        assert_eq!(of("..aAxxxaA..").episodes, 1);
        // The windows of an episode before the test begins are not part of it.
        let mut begun = windows("aaaA");
        begun[..2].iter_mut().for_each(|window| window.counted = false);
        assert_eq!(OperatorFigures::of(CUT, begun).delays_seconds, [0.5]);
    }

    /// Each second is counted once, but an alarm comes when its whole window has arrived.
    #[test]
    fn overlapping_windows_count_no_time_twice() {
        let overlapping = Cut { window: 100, stride: 25 };
        let found = OperatorFigures::of(overlapping, windows("....!...aA......"));
        assert_eq!((found.seconds, found.seconds_without_attack), (4.0, 3.5));
        assert_eq!(found.delays_seconds, [0.25 + 1.0], "four strides after its start");
        // The last windows end after the start of the last one: in strides of the usual duration.
        let at_end = OperatorFigures::of(overlapping, windows("........aA"));
        assert_eq!(at_end.delays_seconds, [0.25 + 1.0]);
        let uneven = OperatorFigures::of(Cut { window: 100, stride: 40 }, windows("....A..."));
        assert_eq!(uneven.delays_seconds, [2.5 * 0.25]);
        let apart = OperatorFigures::of(Cut { window: 100, stride: 400 }, windows("....aA.."));
        assert_eq!(apart.delays_seconds, [0.25 + 0.25 * 0.25], "the window is a quarter of its stride");
        assert_eq!(apart.seconds, 2.0);
    }

    #[test]
    fn a_gap_counts_one_second_and_a_step_back_nothing() {
        let mut gap = windows("....!....");
        gap[4..].iter_mut().for_each(|window| window.start += 90_000.0);
        assert_eq!(OperatorFigures::of(CUT, gap).seconds, 9.0 / 4.0 + 1.0);
        let mut back = windows("....!....");
        back[4..].iter_mut().for_each(|window| window.start -= 500.0);
        assert_eq!(OperatorFigures::of(CUT, back).seconds, 8.0 / 4.0);
        // A slow bus has no gaps: each of its windows lasts eight seconds.
        let mut slow = windows("....aA....");
        slow.iter_mut().for_each(|window| window.start = 1000.0 + (window.start - 1000.0) * 32.0);
        let slow = OperatorFigures::of(CUT, slow);
        assert_eq!((slow.seconds, slow.delays_seconds), (80.0, vec![16.0]));
        // A window with a gap of an hour divides two episodes, although it is one window.
        let mut parted = windows("..A.A..");
        parted[4..].iter_mut().for_each(|window| window.start += 3600.0);
        assert_eq!(OperatorFigures::of(CUT, parted).episodes, 2);
    }

    /// A drive longer than the windows from which the usual duration is taken.
    #[test]
    fn a_long_drive_is_the_sum_of_its_windows() {
        let text = [".".repeat(150), "aaA".to_owned(), ".".repeat(500), "!".to_owned()].concat();
        let found = of(&text);
        assert_eq!((found.seconds, found.false_alarms), (654.0 / 4.0, 1));
        assert_eq!(found.delays_seconds, [0.75]);
        let mut both = of("..A!");
        both.add(found);
        assert_eq!((both.episodes, both.false_alarms, both.seconds), (2, 2, 658.0 / 4.0));
        assert_eq!(both.median_delay_seconds(), 0.5);
    }
}
