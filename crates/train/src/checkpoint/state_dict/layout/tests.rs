//! Tests of `layout`.

use super::*;

fn layout() -> StateDictLayout {
    let source = |name: &str, source: &str, transposed, part| TensorSource {
        name: name.to_string(),
        source: format!("net.{source}"),
        transposed,
        part,
    };
    StateDictLayout {
        prefix: "net.".to_string(),
        tensors: vec![
            source("q.weight", "both.weight", true, Some((0, 2))),
            source("k.weight", "both.weight", true, Some((1, 2))),
            source("q.bias", "both.bias", false, Some((0, 2))),
            source("k.bias", "both.bias", false, Some((1, 2))),
            source("out.weight", "last", true, None),
        ],
        ignored: vec!["*.mask".to_string()],
        ..StateDictLayout::default()
    }
}

fn tensor<const D: usize>(shape: [usize; D]) -> TensorData {
    let count = shape.iter().product::<usize>();
    TensorData::new((0..count).map(|x| x as f32).collect::<Vec<_>>(), shape)
}

fn packed(tensors: &[NamedTensor]) -> BTreeMap<String, PackedTensor> {
    let packed = tensors.iter().map(|(name, data)| {
        let tensor = bridge::from_data(data.clone(), name.clone(), None);
        (name.clone(), tensor)
    });
    packed.collect()
}

fn unpacked(tensors: BTreeMap<String, PackedTensor>) -> Vec<NamedTensor> {
    let read = |(name, tensor)| (name, bridge::into_data(tensor).unwrap());
    tensors.into_iter().map(read).collect()
}

fn file() -> Vec<NamedTensor> {
    let named = |name: &str, data| (format!("net.{name}"), data);
    vec![
        named("both.weight", tensor([3, 4])),
        named("both.bias", tensor([4])),
        named("last", tensor([2, 5])),
    ]
}

#[test]
fn tensors_are_cut_and_turned_and_come_back_as_they_were() {
    let arranged = unpacked(layout().arrange(packed(&file())));
    let find = |name: &str| {
        let found = arranged.iter().find(|(own, _)| own == name);
        found.unwrap().1.clone()
    };
    let k = TensorData::from([[2.0_f32, 6.0, 10.0], [3.0, 7.0, 11.0]]);
    assert_eq!(find("k.weight"), k);
    assert_eq!(find("k.bias"), TensorData::from([2.0_f32, 3.0]));
    assert_eq!(find("out.weight").shape().to_vec(), [5, 2]);
    assert_eq!(arranged.len(), 5);
    assert_eq!(layout().restore(arranged).unwrap(), file());
}

#[test]
fn a_prefix_may_be_missing_and_what_is_ignored_is_not_there() {
    let stripped = file().into_iter();
    let mut stripped: Vec<_> = stripped
        .map(|(name, data)| (name["net.".len()..].to_string(), data))
        .collect();
    stripped.push(("layer.mask".to_string(), tensor([9])));
    stripped.push(("other".to_string(), tensor([1])));
    let names = layout().arrange(packed(&stripped)).into_keys();
    let expected = [
        "k.bias",
        "k.weight",
        "net.other",
        "out.weight",
        "q.bias",
        "q.weight",
    ];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    // A file with the model's own names is taken as it is.
    let own = unpacked(layout().arrange(packed(&file())));
    assert_eq!(unpacked(layout().arrange(packed(&own))), own);
}

#[test]
fn a_name_of_another_version_is_shown_as_the_file_has_it() {
    let layout = StateDictLayout {
        renamed: vec![(".layers.".to_string(), ".layer.".to_string())],
        ..layout()
    };
    let shown = |names: &[&str], name: &str| {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        layout.names_in(&names)(name)
    };
    assert_eq!(shown(&["a.layers.b"], "net.a.layer.b"), "a.layers.b");
    assert_eq!(
        shown(&["net.a.layers.b"], "net.a.layer.b"),
        "net.a.layers.b"
    );
    assert_eq!(shown(&["a.layers.b"], "net.missing"), "net.missing");
    let of_file = ["both.weight", "a.layers.b"];
    assert_eq!(
        shown(&of_file, "q.weight"),
        "net.both.weight (here q.weight)"
    );
    // A name that another library has, too.
    let of_another = ["both.weight", "features.0", "features.1"];
    assert_eq!(shown(&of_another, "q.weight"), "q.weight");
}

#[test]
fn tensors_that_cannot_be_one_are_refused() {
    let mut own = unpacked(layout().arrange(packed(&file())));
    let of_k = own.iter_mut().find(|(name, _)| name == "k.weight").unwrap();
    of_k.1 = tensor([2, 7]);
    assert!(
        layout()
            .restore(own)
            .unwrap_err()
            .contains("cannot be one tensor")
    );
    let missing = layout().restore(Vec::new()).unwrap_err();
    assert!(missing.contains("no tensor q.weight"), "{missing}");
}
