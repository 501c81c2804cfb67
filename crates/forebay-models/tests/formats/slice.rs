//! Slices against a naive model: element by element.

use forebay_models::slice::{Range, plan};
use proptest::prelude::*;

/// The bits of each element of the slice, in order.
fn naive(shape: &[u64], itembits: u64, ranges: &[Range]) -> Vec<u64> {
    let mut offsets = vec![0];
    for (size, (start, stop, step)) in shape.iter().zip(ranges) {
        let places: Vec<u64> = (*start..*stop).step_by(*step as usize).collect();
        offsets =
            offsets.iter().flat_map(|base| places.iter().map(move |place| base * size + place)).collect();
    }
    offsets.into_iter().map(|element| element * itembits).collect()
}

fn slices() -> impl Strategy<Value = (Vec<u64>, Vec<Range>)> {
    let dim = (0_u64..7, 0_u64..8, 0_u64..8, 1_u64..4).prop_map(|(size, one, other, step)| {
        let (one, other) = (one.min(size), other.min(size));
        (size, (one.min(other), one.max(other), step))
    });
    // Whole dimensions are what makes ranges touch.
    let dim = prop_oneof![dim, (0_u64..7).prop_map(|size| (size, (0, size, 1)))];
    prop::collection::vec(dim, 0..5).prop_map(|dims| dims.into_iter().unzip())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_same_bytes_in_the_same_order((shape, ranges) in slices(), itembytes in 1_u64..9) {
        let (runs, out) = plan(&shape, itembytes * 8, &ranges).unwrap();
        let expected: Vec<u64> = naive(&shape, itembytes * 8, &ranges)
            .into_iter()
            .flat_map(|bits| bits / 8..bits / 8 + itembytes)
            .collect();
        let found: Vec<u64> = runs.iter().flat_map(|(offset, nbytes)| offset..offset + nbytes).collect();
        prop_assert_eq!(&found, &expected);
        prop_assert_eq!(runs.total(), expected.len() as u64);
        prop_assert_eq!(out.iter().product::<u64>() * itembytes, runs.total());
        prop_assert_eq!(runs.get(runs.len()), None);
        if let Some((first, count, stride, nbytes)) = runs.uniform() {
            let uniform: Vec<_> = (0..count).map(|index| (first + index * stride, nbytes)).collect();
            prop_assert_eq!(uniform, runs.iter().collect::<Vec<_>>());
        }
        // Without steps, runs that touch are one.
        if ranges.iter().all(|(_, _, step)| *step == 1) {
            let all: Vec<_> = runs.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "{:?}", all);
        }
    }

    #[test]
    fn elements_smaller_than_bytes((shape, ranges) in slices(), itembits in prop::sample::select(vec![4_u64, 6])) {
        let bits = naive(&shape, itembits, &ranges);
        // A slice that is refused has a run somewhere that does not begin or end at a byte.
        match plan(&shape, itembits, &ranges) {
            Ok((runs, _)) => {
                let expected: Vec<u64> = bits.into_iter().flat_map(|bit| bit..bit + itembits).collect();
                let found: Vec<u64> =
                    runs.iter().flat_map(|(offset, nbytes)| offset * 8..(offset + nbytes) * 8).collect();
                prop_assert_eq!(found, expected);
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), forebay_error::ErrorKind::Unsupported);
                let ends = bits.iter().map(|bit| bit + itembits);
                prop_assert!(ends.chain(bits.iter().copied()).any(|bit| bit % 8 != 0));
            }
        }
    }
}

#[test]
fn millions_cost_nothing() {
    let (runs, shape) =
        plan(&[1 << 20, 1 << 10, 1 << 8], 16, &[(0, 1 << 20, 1), (0, 1 << 10, 2), (3, 7, 1)]).unwrap();
    assert_eq!(shape, [1 << 20, 1 << 9, 4]);
    assert_eq!((runs.len(), runs.nbytes()), (1 << 29, 8));
    assert_eq!(runs.uniform(), Some((6, 1 << 29, 1024, 8)), "the loops are one");
}

#[test]
fn refusals() {
    let shape = [4, 4];
    for (shape, bits, index, word) in [
        (&shape[..], 8, &[(0, 5, 1)][..], "beyond"),
        (&shape, 8, &[(3, 2, 1)], "before"),
        (&shape, 8, &[(0, 1, 0)], "zero"),
        (&shape, 8, &[(0, 1, 1); 3], "more ranges"),
        (&[1 << 40, 1 << 40], 8, &[], "overflows"),
        (&[3, 3], 4, &[(1, 2, 1)], "whole bytes"),
    ] {
        let error = plan(shape, bits, index).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    assert_eq!(plan(&[], 32, &[]).unwrap().0.iter().collect::<Vec<_>>(), [(0, 4)]);
}
