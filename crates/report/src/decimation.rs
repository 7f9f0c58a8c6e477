//! A curve of any length in a bounded number of points, made while its file is read.
//!
//! The axis is cut into buckets of equal width, of which each keeps its first, lowest, highest and last point: a line
//! through these looks as the line through all points does, where a bucket is no wider than a pixel (M4 of Jugel,
//! Jerzak, Hackenbroich and Markl, "M4: A Visualization-Oriented Time Series Data Aggregation", VLDB 2014). As the length
//! is not known before the end, buckets begin with a width of 1, and whenever there are too many each two
//! become one of twice the width: O(1) amortised a point.

/// Numbers beyond this cannot be subtracted from each other any more: no quantity of a training is as large.
const LARGEST: f64 = 1e300;

/// A point of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Where on the axis: a step, or milliseconds.
    pub x: u64,
    /// The value, a finite number.
    pub y: f64,
}

/// The points of one piece of the axis.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    /// Its number, from the axis' zero: it begins at `index * width`.
    index: u64,
    first: Point,
    low: Point,
    high: Point,
    last: Point,
    sum: f64,
    count: u64,
}

impl Bucket {
    fn of(index: u64, point: Point) -> Self {
        Self {
            index,
            first: point,
            low: point,
            high: point,
            last: point,
            sum: point.y,
            count: 1,
        }
    }

    fn join(&mut self, later: &Self) {
        if later.low.y < self.low.y {
            self.low = later.low;
        }
        if later.high.y > self.high.y {
            self.high = later.high;
        }
        self.last = later.last;
        self.sum += later.sum;
        self.count += later.count;
    }

    fn mean(&self) -> f64 {
        // A sum of large numbers may not be one any more.
        let mean = self.sum / self.count as f64;
        mean.clamp(self.low.y, self.high.y)
    }
}

/// A curve, decimated as it grows.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    most: usize,
    width: u64,
    buckets: Vec<Bucket>,
    no_numbers: u64,
    turns: u64,
}

impl Default for Series {
    /// With four points for each pixel of a small plot.
    fn default() -> Self {
        Self::new(512)
    }
}

impl Series {
    /// An empty curve that is kept in at most `most` buckets, of four points each; at least two.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(2),
            width: 1,
            buckets: Vec::new(),
            no_numbers: 0,
            turns: 0,
        }
    }

    /// Puts a point at the end. A value that is not a number, or beyond 1e300, is counted and left out. A point that is before the
    /// end takes the place of all from there on: a run that was resumed makes its steps again.
    pub fn push(&mut self, x: u64, y: f64) {
        if y.is_nan() || y.abs() > LARGEST {
            self.no_numbers += 1;
            return;
        }
        if self.last().is_some_and(|last| x < last.x) {
            self.turns += 1;
            self.cut(x);
        }
        let index = x / self.width;
        let bucket = Bucket::of(index, Point { x, y });
        match self.buckets.last_mut() {
            Some(last) if last.index == index => last.join(&bucket),
            _ => self.buckets.push(bucket),
        }
        while self.buckets.len() > self.most {
            self.width *= 2;
            self.buckets = joined(std::mem::take(&mut self.buckets), 1);
        }
    }

    /// Takes out what is at `x` or after, as far as that can be told.
    fn cut(&mut self, x: u64) {
        let index = x / self.width;
        while self.buckets.last().is_some_and(|last| last.index > index) {
            self.buckets.pop();
        }
        if let Some(last) = self.buckets.last_mut()
            && last.last.x >= x
        {
            if last.first.x >= x {
                self.buckets.pop();
            } else {
                // What the bucket has had before is known by its first point only.
                *last = Bucket::of(index, last.first);
            }
        }
    }

    /// How many points there were, those included that are no longer kept one by one.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.count).sum()
    }

    /// How many values were no numbers, or beyond 1e300.
    #[must_use]
    pub fn no_numbers(&self) -> u64 {
        self.no_numbers
    }

    /// How often a point lay before the one that it followed.
    #[must_use]
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Whether there is no point.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// The first point.
    #[must_use]
    pub fn first(&self) -> Option<Point> {
        self.buckets.first().map(|bucket| bucket.first)
    }

    /// The last point.
    #[must_use]
    pub fn last(&self) -> Option<Point> {
        self.buckets.last().map(|bucket| bucket.last)
    }

    /// The first of the lowest points.
    #[must_use]
    pub fn lowest(&self) -> Option<Point> {
        let lows = self.buckets.iter().map(|bucket| bucket.low);
        lows.reduce(|low, other| if other.y < low.y { other } else { low })
    }

    /// The first of the highest points.
    #[must_use]
    pub fn highest(&self) -> Option<Point> {
        let highs = self.buckets.iter().map(|bucket| bucket.high);
        highs.reduce(|high, other| if other.y > high.y { other } else { high })
    }

    /// First, lowest, highest and last point of each bucket, in order, of at most `most` buckets. All points, where there
    /// are few.
    #[must_use]
    pub fn points(&self, most: usize) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::new();
        for bucket in self.at_most(most) {
            let (earlier, later) = match bucket.low.x <= bucket.high.x {
                true => (bucket.low, bucket.high),
                false => (bucket.high, bucket.low),
            };
            for point in [bucket.first, earlier, later, bucket.last] {
                if points.last() != Some(&point) {
                    points.push(point);
                }
            }
        }
        points
    }

    /// The mean of each bucket at the middle of its points, of at most `most` buckets, and how wide these are.
    #[must_use]
    pub fn means(&self, most: usize) -> (Vec<Point>, u64) {
        let buckets = self.at_most(most);
        let means = buckets.iter().map(|bucket| Point {
            x: bucket.first.x + (bucket.last.x - bucket.first.x) / 2,
            y: bucket.mean(),
        });
        let shift = self.shift_to(most);
        let width = match shift <= self.width.leading_zeros() && shift < u64::BITS {
            true => self.width << shift,
            false => u64::MAX,
        };
        (means.collect(), width)
    }

    fn at_most(&self, most: usize) -> Vec<Bucket> {
        joined(self.buckets.clone(), self.shift_to(most))
    }

    /// How often buckets have to become twice as wide for there to be no more than `most`, or one.
    fn shift_to(&self, most: usize) -> u32 {
        let count = |shift: u32| {
            let pairs = self.buckets.windows(2);
            let apart =
                |pair: &&[Bucket]| halved(pair[0].index, shift) != halved(pair[1].index, shift);
            pairs.filter(apart).count() + usize::from(!self.buckets.is_empty())
        };
        (0..u64::BITS)
            .find(|shift| count(*shift) <= most.max(1))
            .unwrap_or(u64::BITS)
    }
}

/// A bucket's number when buckets are twice as wide, this many times over.
fn halved(index: u64, times: u32) -> u64 {
    index.checked_shr(times).unwrap_or(0)
}

/// Buckets that are twice as wide, this many times over.
fn joined(buckets: Vec<Bucket>, times: u32) -> Vec<Bucket> {
    let mut wider: Vec<Bucket> = Vec::new();
    for mut bucket in buckets {
        bucket.index = halved(bucket.index, times);
        match wider.last_mut() {
            Some(last) if last.index == bucket.index => last.join(&bucket),
            _ => wider.push(bucket),
        }
    }
    wider
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series(most: usize, points: &[(u64, f64)]) -> Series {
        let mut series = Series::new(most);
        for (x, y) in points {
            series.push(*x, *y);
        }
        series
    }

    fn kept(series: &Series) -> Vec<(u64, f64)> {
        let points = series.points(8);
        points.iter().map(|point| (point.x, point.y)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn extremes_and_ends_are_kept(
            steps in prop::collection::vec((1_u64..5000, -1e6..1e6), 1..400),
            most in 2_usize..40,
        ) {
            let mut x = 0;
            let points: Vec<(u64, f64)> = steps.iter().map(|(by, y)| { x += by; (x, *y) }).collect();
            let series = series(most, &points);
            let kept = series.points(most);
            prop_assert!(kept.len() <= 4 * most);
            prop_assert!(kept.windows(2).all(|pair| pair[0].x <= pair[1].x));
            let all = |point: &Point| points.contains(&(point.x, point.y));
            prop_assert!(kept.iter().all(all));
            let values = || points.iter().map(|(_, y)| *y);
            let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
            prop_assert!(kept.iter().any(|point| point.y == low));
            prop_assert!(kept.iter().any(|point| point.y == high));
            prop_assert_eq!(series.lowest().unwrap().y, low);
            prop_assert_eq!(series.highest().unwrap().y, high);
            prop_assert_eq!((kept[0].x, kept[0].y), points[0]);
            let last = kept[kept.len() - 1];
            prop_assert_eq!((last.x, last.y), points[points.len() - 1]);
            prop_assert_eq!(series.count(), points.len() as u64);
            let (means, _) = series.means(most);
            prop_assert!(means.iter().all(|mean| (low..=high).contains(&mean.y)));
        }

        #[test]
        fn nothing_on_an_axis_breaks_it(
            points in prop::collection::vec((any::<u64>(), any::<f64>()), 0..100),
            most in 0_usize..20,
        ) {
            let series = series(most, &points);
            prop_assert!(series.points(most).len() <= 4 * most.max(1));
            prop_assert!(series.points(7).iter().all(|point| point.y.is_finite()));
            prop_assert!(series.means(7).0.iter().all(|point| point.y.is_finite()));
        }
    }

    #[test]
    fn few_points_are_all_there() {
        let points = [(10, 1.0), (20, 3.0), (30, 2.0)];
        let series = series(8, &points);
        assert_eq!(kept(&series), points);
        assert_eq!(series.means(8), (series.points(8), 1));
        // One bucket of 32 steps is left of them.
        assert_eq!(series.means(1), (vec![Point { x: 20, y: 2.0 }], 32));
    }

    #[test]
    fn the_ends_of_the_axis_fit_into_one_bucket() {
        let series = series(8, &[(0, 1.0), (u64::MAX, 3.0)]);
        assert_eq!(series.points(1).len(), 2);
        let (means, width) = series.means(1);
        assert_eq!((means[0].y, width), (2.0, u64::MAX));
    }

    #[test]
    fn steps_that_are_made_again_take_the_place_of_the_first() {
        let mut series = series(8, &[(1, 1.0), (2, 2.0), (3, 3.0)]);
        series.push(2, 5.0);
        assert_eq!(kept(&series), [(1, 1.0), (2, 5.0)]);
        assert_eq!(series.turns(), 1);
        series.push(3, f64::NAN);
        assert_eq!((series.count(), series.no_numbers()), (2, 1));
    }
}
