//! Copies of tied weights, which a file has beside them.

use std::collections::BTreeMap;
use std::path::Path;

use burn::store::bridge;
use burn::store::burn_pack::Tensor as PackedTensor;

use super::StateDictLayout;
use crate::config::parameter_groups::Patterns;
use crate::error::TrainError;
use crate::record::run_directory::unread;

impl StateDictLayout {
    /// Refuses a file of which a tensor differs from the one that it is a copy of to the model, unless it is skipped: the
    /// model has no place for it.
    ///
    /// # Errors
    /// [`TrainError::File`] that names both.
    pub(super) fn check_copies(
        &self,
        path: &Path,
        tensors: &BTreeMap<String, PackedTensor>,
        skip: &Patterns,
    ) -> Result<(), TrainError> {
        let find = |end: &str| {
            let is_it = |name: &str| {
                let before = name.strip_suffix(end);
                before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
            };
            tensors.iter().find(|(name, _)| is_it(name))
        };
        for (copy, of) in self.copies {
            let (Some((copy, copied)), Some((of, tensor))) = (find(copy), find(of)) else {
                continue;
            };
            if skip.fit(copy) {
                continue;
            }
            let [copied, tensor] = [copied, tensor].map(|tensor| {
                bridge::into_data(tensor.clone()).map_err(|error| unread(path, &error))
            });
            if copied? != tensor? {
                let own_head = match self.own_head {
                    Some(setting) => format!(
                        "A model with a head of its own is another one: set `{setting}`, or `tie_word_embeddings` false in the config.json \
                         of a folder"
                    ),
                    None => "This kind of model has no head of its own".to_owned(),
                };
                let reason = format!(
                    "{copy} has other numbers than {of}, and the model has one tensor for both. {own_head}. `init_skip = '{copy}'` leaves \
                     the first out, which is right only for a head that is tied"
                );
                return Err(unread(path, &reason));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    fn checked(
        head: &[f32],
        skip: &[&str],
        own_head: Option<&'static str>,
    ) -> Result<(), TrainError> {
        let layout = StateDictLayout {
            own_head,
            copies: &[("lm_head.weight", "wte.weight")],
            ..StateDictLayout::default()
        };
        let numbers: [(&str, &[f32]); 2] =
            [("lm_head.weight", head), ("net.wte.weight", &[1.0, 2.0])];
        let tensors = numbers.map(|(name, numbers)| {
            let data = TensorData::from(numbers);
            (
                name.to_owned(),
                bridge::from_data(data, name.to_owned(), None),
            )
        });
        let skip = Patterns::from(skip.concat().as_str());
        layout.check_copies(Path::new("a.pt"), &tensors.into(), &skip)
    }

    #[test]
    fn a_head_of_its_own_is_refused_where_the_model_has_none_unless_it_is_skipped() {
        checked(&[1.0, 2.0], &[], None).unwrap();
        let error = checked(&[1.0, 3.0], &[], None).unwrap_err().to_string();
        let both = "lm_head.weight has other numbers than net.wte.weight";
        assert!(error.contains(both), "{error}");
        for expected in [
            "`init_skip = 'lm_head.weight'` leaves the first out",
            "This kind of model has no head of its own",
        ] {
            assert!(error.contains(expected), "{error}");
        }
        let error = checked(&[1.0, 3.0], &[], Some("llama.tied = false"));
        let error = error.unwrap_err().to_string();
        let setting = "a head of its own is another one: set `llama.tied = false`";
        assert!(error.contains(setting), "{error}");
        checked(&[1.0, 3.0], &["lm_head.*"], None).unwrap();
    }
}
