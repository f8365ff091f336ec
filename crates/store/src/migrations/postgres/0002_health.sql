-- How each replica finds the model deployments, for its peers.
ALTER TABLE evenkeel.replicas ADD COLUMN health text NOT NULL DEFAULT '[]';
