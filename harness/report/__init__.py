"""What a run tells people: terminal, HTML, JUnit, Buildkite annotation. Nothing here judges a run again."""
