//! Tests of `networks`.

use super::*;

#[test]
fn the_layers_have_the_parameters_of_the_models() {
    // Without running statistics, and without the gammas of mnist-bn, which are not trained; resnet50 with 1000 classes.
    for (name, expected) in [
        ("mnist", 21_840),
        ("mnist-bn", 49_210),
        ("resnet50", 25_557_032),
        ("gpt-nano", 801_664),
        ("matmul", 0),
    ] {
        let network = Network::named(name).unwrap();
        assert_eq!(network.parameters(65), expected, "{name}");
    }
}

#[test]
fn equal_layers_are_counted_and_stand_once() {
    let layers = Network::named("resnet50").unwrap().layers();
    let convs: Vec<_> = layers
        .iter()
        .filter(|used| matches!(used.layer, Layer::Conv2d { .. }))
        .collect();
    assert_eq!(convs.len(), 23);
    assert_eq!(convs.iter().map(|used| used.count).sum::<usize>(), 53);
    let find = |name: &str| layers.iter().find(|used| used.layer.to_string() == name);
    assert_eq!(find("conv 256->256 k3 p1 on 14x14").unwrap().count, 5);
    assert_eq!(find("conv 256->256 k3 s2 p1 on 28x28").unwrap().count, 1);
}

#[test]
fn no_gradient_of_the_data_is_computed() {
    for network in &NETWORKS {
        let layers = network.layers();
        let expected = match network.name {
            "matmul" => Pass::Backward,
            _ => Pass::WeightGradient,
        };
        assert_eq!(layers[0].passes(), [Pass::Forward, expected]);
        for used in &layers[1..] {
            assert!(!used.passes().contains(&Pass::WeightGradient), "{used:?}");
        }
    }
}
