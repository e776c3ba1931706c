"""Builds an engine for a candidate's route, in processes that may fail without hurting the study."""
